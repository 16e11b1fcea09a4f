"""Counterexamples that people can read: in words, as a space-time diagram, and as a page to step through."""

from headway.verification.report.diagram import diagram
from headway.verification.report.page import page
from headway.verification.report.story import Arrow, Frame, Story, tell
from headway.verification.report.words import words

__all__ = ["Arrow", "Frame", "Story", "diagram", "page", "tell", "words"]
