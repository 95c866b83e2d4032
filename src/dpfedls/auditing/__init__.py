"""Audits: run the real code with a hostile person in it, and look at everything that leaves."""
