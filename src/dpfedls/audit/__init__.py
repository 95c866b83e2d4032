"""Audits: attack the real code, and see whether what it leaks exceeds what the plan claims."""
