"""The faces of the store (local, threaded, HTTP server, HTTP client) have the methods of the contract to the letter."""

import inspect

import pytest

from sharpen.errors import MissingMethodError
from sharpen.store import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreClient,
    LightningStoreServer,
    LightningStoreThreaded,
    SQLiteStore,
)
from tests.errors import raises
from tests.store.internals import METHODS

FACES = [InMemoryLightningStore, SQLiteStore, LightningStoreClient, LightningStoreServer, LightningStoreThreaded]


def call_shape(function):
    """What a caller can see of a signature: names, kinds and defaults, in order."""
    parameters = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind.name, parameter.default) for parameter in parameters]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_every_face_takes_the_arguments_of_the_contract(face, name):
    assert call_shape(getattr(face, name)) == call_shape(getattr(LightningStore, name))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_every_method_of_every_face_is_async_and_has_its_name_and_docs(face, name):
    method = getattr(face, name)
    assert inspect.iscoroutinefunction(method)
    assert method.__name__ == name
    assert getattr(LightningStore, name).__doc__


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_no_face_leaves_a_method_of_the_contract_undone(face):
    # Some are made from others in the contract itself; the rest must be the face's own.
    made_from_others = {name for name, method in METHODS.items() if method.kind == "derived"} | {"add_otel_span"}
    inherited = {name for name in METHODS if getattr(face, name) is getattr(LightningStore, name)}
    assert inherited <= made_from_others


def test_the_table_of_methods_has_every_async_method_of_the_contract():
    public = {
        name
        for name, member in vars(LightningStore).items()
        if inspect.iscoroutinefunction(member) and not name.startswith("_")
    }
    assert public - {"close", "add_otel_span"} == set(METHODS)


def test_no_two_methods_share_an_address():
    addresses = [(method.verb, method.path) for method in METHODS.values()]
    assert len(set(addresses)) == len(addresses)


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if method.kind != "derived" and name != "search_rollouts"]
)
async def test_a_store_of_ones_own_that_lacks_a_method_is_named_with_it(name):
    class Unfinished(LightningStore):
        pass

    method = getattr(Unfinished(), name)
    needed = [each for each in inspect.signature(method).parameters.values() if each.default is each.empty]
    with raises(MissingMethodError, "Unfinished", name) as caught:
        await method(**dict.fromkeys((each.name for each in needed), "x"))
    assert isinstance(caught.value, NotImplementedError)
