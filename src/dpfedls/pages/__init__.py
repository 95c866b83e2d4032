"""Pages that stand by themselves: HTML without a network, made of strings and numbers alone."""
