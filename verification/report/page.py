"""A story as one HTML page that works offline: step forward and back, see variables and what is on the wires."""

from __future__ import annotations

import json
from html import escape

from headway.verification.report.diagram import diagram
from headway.verification.report.story import Story

_STYLE = """
:root { --paper: #fff; --ink: #1c2330; --soft: #f1f3f7; --line: #cfd5df; --red: #c81e27; --blue: #2258c4 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181f; --ink: #e6e9ef; --soft: #1e242e; --line: #3a4352; --red: #ff6b70; --blue: #8ab4ff }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif }
header, main { padding: 1rem 1.5rem } h1 { font-size: 1.2rem; margin: 0 0 .3rem } .bad { color: var(--red) }
main { display: grid; grid-template-columns: minmax(22rem, 32rem) 1fr; gap: 1.5rem; align-items: start }
@media (max-width: 60rem) {
  main { grid-template-columns: 1fr }
}
.bar { display: flex; gap: .5rem; align-items: center; position: sticky; top: 0; background: var(--paper); padding: .5rem 0 }
button { font: inherit; padding: .25rem .8rem; border: 1px solid var(--line); border-radius: .4rem; background: var(--soft);
  color: inherit; cursor: pointer }
button:disabled { opacity: .4; cursor: default } input[type=range] { flex: 1 }
table { border-collapse: collapse; width: 100%; font-size: .9rem } th, td { text-align: left; padding: .15rem .6rem .15rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top } .changed { color: var(--blue); font-weight: 600 }
ol { padding-left: 2.2rem; max-height: 22rem; overflow: auto } li { cursor: pointer } li.now { font-weight: 650 }
.picture { overflow: auto; max-height: 90vh; border: 1px solid var(--line); border-radius: .5rem }
"""

_SCRIPT = """
const story = JSON.parse(document.getElementById('story').textContent), $ = id => document.getElementById(id);
let now = 0; const last = story.frames.length - 1; $('at').max = last;
const cell = (text, changed) => { const td = document.createElement('td'); td.textContent = text;
  if (changed) td.className = 'changed'; return td; };
const row = (...cells) => { const tr = document.createElement('tr'); tr.append(...cells); return tr; };
story.steps.forEach((s, i) => { const li = document.createElement('li');
  li.textContent = `rank ${s.rank}, pass ${s.this_pass}, slot ${s.slot}: ${s.row}` + (s.detail ? ` (${s.detail})` : '');
  li.onclick = () => show(i + 1); $('steps').append(li); });
function show(n) {
  now = Math.max(0, Math.min(last, n)); $('at').value = now; $('count').textContent = `${now} / ${last}`;
  $('back').disabled = now === 0; $('next').disabled = now === last;
  [...$('steps').children].forEach((li, i) => li.className = i === now - 1 ? 'now' : '');
  const li = $('steps').children[now - 1]; if (li) li.scrollIntoView({block: 'nearest'});
  const frame = story.frames[now], before = story.frames[Math.max(0, now - 1)];
  $('ranks').replaceChildren(...frame.rows.map((r, i) => row(cell(`rank ${i}`), cell(r, r !== before.rows[i]))));
  const names = [...new Set(frame.variables.flatMap(v => Object.keys(v)))];
  $('variables').replaceChildren(row(cell(''), ...frame.rows.map((_, i) => cell(`rank ${i}`))),
    ...names.map(name => row(cell(name), ...frame.variables.map((v, i) =>
      cell(v[name] ?? '', v[name] !== before.variables[i][name])))));
  $('wires').replaceChildren(...Object.entries(frame.wires).map(([name, queue]) => row(cell(name),
    cell(queue.join('; ') || 'empty', JSON.stringify(queue) !== JSON.stringify(before.wires[name] ?? [])))));
  document.querySelectorAll('.picture [data-step]').forEach(e => e.style.opacity = +e.dataset.step < now ? 1 : .15);
}
$('back').onclick = () => show(now - 1); $('next').onclick = () => show(now + 1); $('at').oninput = e => show(+e.target.value);
document.onkeydown = e => { if (e.key === 'ArrowLeft') show(now - 1); if (e.key === 'ArrowRight') show(now + 1); };
show(last);
"""


def page(story: Story) -> str:
    """The HTML text."""
    data = json.dumps(story.to_json()).replace("</", "<\\/")
    where = "; ".join(
        f"rank {w.rank} at {w.row}" + (f", waiting on rank {w.on}" if w.on is not None else "") for w in story.positions
    )
    ring = " → ".join(f"rank {rank}" for rank in (*story.cycle, *story.cycle[:1]))
    cycle = f"<p class=bad>Cycle: {escape(ring)}</p>" if story.cycle else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(story.law)}: {escape(story.table)}</title><style>{_STYLE}</style></head><body>
<header><h1 class=bad>{escape(story.law)}: {escape(story.finding)}</h1>
<p>Table {escape(story.table)} {story.fingerprint[:12]}, {story.ranks} ranks, {story.slots} slots. In the end: {escape(where)}.</p>
{cycle}</header>
<main><section>
<div class=bar><button id=back>Back</button><input id=at type=range min=0 value=0 aria-label="step"><button id=next>Next</button>
<span id=count></span></div>
<ol id=steps></ol><h2>Who stands where</h2><table id=ranks></table><h2>On the wires</h2><table id=wires></table>
<h2>Variables</h2><table id=variables></table>
</section><section class=picture>{diagram(story)}</section></main>
<script type="application/json" id="story">{data}</script><script>{_SCRIPT}</script></body></html>
"""
