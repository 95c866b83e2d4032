"""The server: samples people, checks what nodes send, pays, adds noise, keeps the model."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dpfedls.flower import DPFedLS
from dpfedls.flower.agreement import read_agreement
from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipes
from dpfedls.tasks.task import make_task

recipe = recipes.read(str(Path(__file__).with_name("recipe.toml")))
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, or the rest of one: the run folder knows the last released round."""
    settings = context.run_config
    roster = str(settings.get("roster", ""))  # who holds whom, by node key; "" believes the nodes
    # Your own: any nn.Module without running statistics, and test samples of nobody trained on.
    task = make_task(recipe.task, recipe.plan.num_clients, SeededStreams(recipe.seed))
    strategy = DPFedLS(
        recipe,
        model=task.model,
        test=task.test,
        folder=str(settings["run-folder"]),
        people=read_agreement(Path(roster)) if roster else None,
        wait_for_nodes=int(settings["wait-for-nodes"]),
    )
    strategy.start(grid, timeout=float(settings["round-timeout"]))
