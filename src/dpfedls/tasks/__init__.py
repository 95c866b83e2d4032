"""Federated data sets with a model to train on them. Tasks know no privacy."""
