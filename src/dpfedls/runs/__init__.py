"""Experiments as data: recipes, runs in folders, reports."""
