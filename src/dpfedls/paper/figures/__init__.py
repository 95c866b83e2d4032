"""The paper's figures: each module measures, draws and says in plain words what is seen."""
