"""The incident corpus: reported failures of pipeline protocols as small edits of a table, with the verdict of each.

Among them are changes that must pass, so that no wrong causal story becomes a law.
"""

from headway.spec.incidents import collectives, congruence, ordering, progress, reports
from headway.spec.incidents.elsewhere import ELSEWHERE, Elsewhere
from headway.spec.incidents.incident import Expected, Incident
from headway.spec.language import SpecError

INCIDENTS: tuple[Incident, ...] = (
    *ordering.INCIDENTS,
    *congruence.INCIDENTS,
    *collectives.INCIDENTS,
    *progress.INCIDENTS,
    *reports.INCIDENTS,
)

__all__ = ["ELSEWHERE", "INCIDENTS", "Elsewhere", "Expected", "Incident", "find_incident"]


def find_incident(name: str) -> Incident:
    """The incident of that id; raises `SpecError`."""
    for incident in INCIDENTS:
        if incident.id == name:
            return incident
    raise SpecError(f"unknown incident {name!r}; known: {', '.join(i.id for i in INCIDENTS)}")
