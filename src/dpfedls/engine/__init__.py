"""How clients are trained fast: every engine gives the results of the slow twin."""
