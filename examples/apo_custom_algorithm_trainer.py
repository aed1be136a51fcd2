"""The optimiser of `apo_custom_algorithm.py` through `Trainer`: one command, runners supervised, everything recorded.

    python examples/apo_custom_algorithm_trainer.py

`@algo` makes the function an algorithm; the trainer gives it the store and the data by name. Needs
`pip install 'sharpen[apo]'`.
"""

from collections.abc import Sequence

from apo_custom_algorithm import improve_the_prompt
from apo_offline import Task, date_reader, make_tasks
from stand_in_model import StandInModel

from sharpen import LightningStore, PromptTemplate, Trainer, algo


def main() -> None:
    with StandInModel() as model:

        @algo
        async def optimise(*, store: LightningStore, train_dataset: Sequence[Task]) -> None:
            await improve_the_prompt(store=store, train_dataset=train_dataset, model_url=model.base_url)

        trainer = Trainer(algorithm=optimise, n_runners=2)
        result = trainer.fit(date_reader, make_tasks(16, seed=1))
    assert result.best_resources is not None
    best = result.best_resources["prompt"]
    assert isinstance(best, PromptTemplate)
    print(f"the best prompt:\n{best.template}")


if __name__ == "__main__":
    main()
