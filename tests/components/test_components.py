"""Specs in every form, what they give, and what their errors say."""

import functools
import subprocess
import sys
import textwrap
import traceback
from abc import ABC, abstractmethod
from collections import OrderedDict
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable
from unittest.mock import Mock

import pytest
from hypothesis import given, strategies as st

from sharpen.components import (
    ComponentSpec,
    build_component,
    instantiate_component,
    instantiate_from_spec,
    load_class,
)
from sharpen.errors import ComponentError, ComponentTypeError, MissingExtraError
from tests.errors import raises

T = TypeVar("T")


class Store:
    def put(self, value: int) -> None: ...

    def get(self) -> int:
        return 0


class FileStore(Store):
    class Index(Store):
        pass

    def __init__(self, path: str = "a.db", *, thread_safe: bool = False, api_key: str | None = None) -> None:
        self.path = path
        self.thread_safe = thread_safe
        self.api_key = api_key


class NeedyStore(Store):
    def __init__(self, url: str) -> None:
        self.url = url


class OpenStore(Store):
    def __init__(self, **kwargs: object) -> None:
        self.kwargs = kwargs


class GenericStore(Store, Generic[T]):
    pass


class StandIn:
    def put(self, value: int) -> None: ...

    def get(self) -> int:
        return 1


class HalfStore:
    def put(self, value: int) -> None: ...


class Unrelated:
    pass


class FailingStore(Store):
    def __init__(self) -> None:
        raise KeyError("the user's own error")


NOT_A_CLASS = 3


def make_store() -> Store:
    return FileStore("made.db")


def make_store_at(path: str) -> Store:
    return FileStore(path)


async def make_store_later() -> Store:
    return FileStore()


def path_of(thing: Any) -> str:
    return f"{__name__}.{thing.__qualname__}"


def build(spec: ComponentSpec[Any], **options: Any) -> Any:
    return build_component(spec, expected_type=Store, spec_name="store", **options)


# -- every form of a spec ------------------------------------------------------------------------------


def test_an_instance_is_used_as_it_is() -> None:
    store = FileStore()
    assert build(store) is store


def test_a_class_is_instantiated() -> None:
    assert type(build(FileStore)) is FileStore


def test_a_class_with_type_arguments_is_instantiated() -> None:
    assert type(build(GenericStore[int])) is GenericStore


def test_a_factory_is_called() -> None:
    assert build(make_store).path == "made.db"
    assert build(lambda: FileStore("b.db")).path == "b.db"
    assert build(functools.partial(make_store_at, "c.db")).path == "c.db"


def test_an_import_path_is_loaded_and_instantiated() -> None:
    assert type(build(path_of(FileStore))) is FileStore


def test_an_import_path_may_lead_to_a_nested_class_or_a_factory() -> None:
    assert type(build(path_of(FileStore.Index))) is FileStore.Index
    assert build(path_of(make_store)).path == "made.db"


def test_a_dict_gives_keyword_arguments_to_its_type() -> None:
    assert build({"type": path_of(FileStore), "path": "x.db"}).path == "x.db"
    assert build({"type": FileStore, "path": "y.db"}).path == "y.db"
    assert build({"type": make_store_at, "path": "z.db"}).path == "z.db"


def test_any_mapping_is_a_dict_spec_and_is_left_unchanged() -> None:
    spec = OrderedDict(type=FileStore, path="x.db")
    assert build(spec).path == "x.db"
    assert spec == {"type": FileStore, "path": "x.db"}


def test_a_name_of_the_given_registry_comes_before_the_built_in_ones() -> None:
    registry = {"file": path_of(FileStore), "SQLiteStore": FileStore}
    assert type(build("file", registry=registry)) is FileStore
    assert type(build({"type": "SQLiteStore", "path": "x"}, registry=registry)) is FileStore


def test_a_class_in_main_is_found_by_its_name(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            from sharpen.components import build_component

            class Base:
                pass

            class MyStore(Base):
                def __init__(self, path="default"):
                    self.path = path

            print(build_component("MyStore", expected_type=Base, spec_name="store").path)
            print(build_component({"type": "MyStore", "path": "p"}, expected_type=Base, spec_name="store").path)
            try:
                build_component("MyStor", expected_type=Base, spec_name="store")
            except ValueError as error:
                print(error)
        """)
    )
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    unknown = "store='MyStor': there is no component named 'MyStor'. Did you mean 'MyStore'?"
    assert result.stdout.splitlines() == ["default", "p", unknown]


def test_none_gives_the_default_then_none_if_allowed() -> None:
    assert build(None, default_factory=make_store).path == "made.db"
    assert build(None, default_factory=make_store, allow_none=True).path == "made.db"
    assert build(None, allow_none=True) is None


def test_a_dict_without_type_uses_the_default_class_only_if_told_so() -> None:
    assert build({"path": "x"}, dict_requires_type=False, dict_default_cls=FileStore).path == "x"
    with raises(ComponentError, "store=", "path", "x", "type"):
        build({"path": "x"}, dict_default_cls=FileStore)
    with raises(ComponentError, "type"):
        build({"path": "x"}, dict_requires_type=False)


def test_a_component_that_is_itself_a_mapping_or_callable_is_an_instance() -> None:
    class DictStore(dict[str, int], Store):  # type: ignore[misc]
        pass

    class CallableStore(Store):
        def __call__(self) -> None:
            raise AssertionError("an instance is not a factory")

    for store in (DictStore(type=3), CallableStore()):
        assert build(store) is store


# -- defaults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [FileStore, path_of(FileStore), {"type": FileStore}])
def test_defaults_reach_a_constructor_that_takes_them(spec: Any) -> None:
    assert build(spec, optional_defaults={"thread_safe": True, "other": 1}).thread_safe is True


def test_a_provided_argument_wins_over_a_default() -> None:
    assert instantiate_component(FileStore, {"path": "mine"}, {"path": "default"}).path == "mine"


def test_a_default_factory_is_called_only_when_its_value_is_needed() -> None:
    def never() -> Any:
        raise AssertionError("not needed")

    made = instantiate_component(FileStore, {"path": "p"}, {"path": never, "other": never, "thread_safe": lambda: 7})
    assert (made.path, made.thread_safe) == ("p", 7)


def test_no_default_factory_runs_for_a_call_that_cannot_be_made() -> None:
    def never() -> Any:
        raise AssertionError("not needed")

    def both(first: int, second: int) -> None: ...

    with pytest.raises(ComponentError):
        instantiate_component(both, {}, {"first": never})


def test_a_default_that_needs_arguments_is_a_value() -> None:
    assert instantiate_component(OpenStore, {}, {"kwargs": make_store_at}).kwargs == {}
    assert instantiate_component(FileStore, {}, {"path": make_store_at}).path is make_store_at


def test_extra_keywords_do_not_attract_defaults() -> None:
    assert instantiate_component(OpenStore, {"a": 1}, {"store": 2}).kwargs == {"a": 1}


def test_a_constructor_without_a_signature_is_still_called() -> None:
    assert instantiate_component(dict, {"a": 1}, {"b": 2}) == {"a": 1}


@given(st.dictionaries(st.sampled_from(["path", "thread_safe", "api_key"]), st.integers()))
def test_provided_arguments_always_arrive_unchanged(provided: dict[str, int]) -> None:
    made = instantiate_component(FileStore, provided, {"path": -1, "thread_safe": -2, "api_key": -3})
    assert vars(made) == {"path": -1, "thread_safe": -2, "api_key": -3} | provided


# -- wrong types and stand-ins -------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [StandIn(), StandIn, lambda: StandIn(), path_of(StandIn), {"type": StandIn}, Mock()])
def test_an_object_with_the_methods_is_accepted(spec: Any) -> None:
    assert callable(build(spec).put)


@pytest.mark.parametrize("spec", [HalfStore(), HalfStore, lambda: HalfStore(), path_of(HalfStore), {"type": HalfStore}])
def test_a_missing_method_is_named(spec: Any) -> None:
    with raises(ComponentTypeError, "store=", "HalfStore", "Store"):
        build(spec)


def test_an_attribute_that_is_no_method_does_not_count() -> None:
    half = HalfStore()
    half.get = 3  # type: ignore[attr-defined]
    with pytest.raises(ComponentTypeError):
        build(half)


def test_many_missing_methods_are_counted() -> None:
    Large = type("Large", (), {f"method_{i}": make_store for i in range(20)})
    with raises(ComponentTypeError, "method_0", "method_5", 14):
        build_component(Unrelated(), expected_type=Large, spec_name="large")


@pytest.mark.parametrize("spec", [Store(), Store, lambda: Store(), path_of(Store)])
def test_a_class_without_methods_has_no_stand_ins(spec: Any) -> None:
    with raises(ComponentTypeError, "Store", "Unrelated"):
        build_component(spec, expected_type=Unrelated, spec_name="thing")


def test_inherited_methods_count_and_private_ones_do_not() -> None:
    class Durable(Store):
        def _sync(self) -> None: ...

        @classmethod
        def open(cls) -> None: ...

    with pytest.raises(ComponentTypeError):
        build_component(StandIn(), expected_type=Durable, spec_name="store")


def test_a_protocol_is_met_by_its_methods() -> None:
    class Putting(Protocol):
        def put(self, value: int) -> None: ...

    @runtime_checkable
    class Getting(Protocol):
        def get(self) -> int: ...

    part = HalfStore()
    assert build_component(part, expected_type=Putting, spec_name="part") is part  # type: ignore[type-abstract]
    with raises(ComponentTypeError, "Getting"):
        build_component(part, expected_type=Getting, spec_name="part")  # type: ignore[type-abstract]


def test_a_string_is_a_name_even_where_strings_have_the_methods() -> None:
    class Template:
        def format(self) -> str:
            return ""

    with raises(ComponentError, "nope"):
        build_component("nope", expected_type=Template, spec_name="template")


def test_an_abstract_class_is_refused_with_what_it_lacks() -> None:
    class AbstractStore(Store, ABC):
        @abstractmethod
        def flush(self) -> None: ...

    with raises(ComponentTypeError, "store=", "AbstractStore"):
        build(AbstractStore)


def test_the_default_is_checked_too() -> None:
    with raises(ComponentTypeError, "Unrelated", "Store"):
        build(None, default_factory=Unrelated)


def test_a_custom_type_message_keeps_the_missing_methods() -> None:
    fmt = "{spec_name}: {type} / {type_name} is not {expected} / {expected_type}"
    with pytest.raises(ComponentTypeError) as caught:
        build(HalfStore, type_error_fmt=fmt)
    assert str(caught.value) == f"store: {HalfStore} / {HalfStore} is not Store / Store; it lacks get"


# -- what is no spec -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [42, 1.5, True, b"x", [FileStore], (), {1, 2}, object(), sys])
def test_plain_data_is_no_spec(spec: Any) -> None:
    with raises(ComponentError, "store=", "Store"):
        build(spec)


def test_none_is_refused_where_something_is_needed() -> None:
    with raises(ComponentError, None, "Store"):
        build(None)


@pytest.mark.parametrize("spec", [None, 42])
def test_a_custom_message_for_what_is_no_spec(spec: Any) -> None:
    with pytest.raises(ComponentError) as caught:
        build(spec, invalid_spec_error_fmt="{spec_name} is {actual_type} / {spec_type}, not {expected}")
    assert str(caught.value) == f"store is {type(spec)} / {type(spec)}, not Store"


def test_only_names_paths_and_dicts_can_be_instantiated_from_a_spec() -> None:
    assert instantiate_from_spec(path_of(Unrelated), spec_name="thing").__class__ is Unrelated
    with raises(ComponentTypeError, "int"):
        instantiate_from_spec(42, spec_name="thing")  # type: ignore[arg-type]


def test_the_type_in_a_dict_must_be_a_name_a_path_or_a_class() -> None:
    with raises(ComponentError, "type"):
        build({"type": 3})


# -- names and paths that lead nowhere -----------------------------------------------------------------


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ComponentError) as caught:
        build("sqlitstore")
    assert str(caught.value).startswith("store='sqlitstore': there is no component named 'sqlitstore'. Did you mean ")
    assert "'SQLiteStore'" in str(caught.value)


@pytest.mark.parametrize("spec", ["", "qqqqq", {"type": "qqqqq"}])
def test_an_unknown_name_like_no_other_lists_the_known_ones(spec: Any) -> None:
    with raises(ComponentError, "store=", "AgentOpsTracer"):
        build(spec)


@pytest.mark.parametrize("path", ["", "nodots", "a..b", ".a", "a.", "a-b.C", "a.b:C", 3])
def test_a_text_that_is_no_path_is_refused(path: Any) -> None:
    with raises(ComponentError, "pkg.module.Class"):
        load_class(path)


def test_a_missing_module_is_told_from_a_missing_attribute() -> None:
    with raises(ComponentError, "path='jsn.Decoder'", "jsn", "json"):
        load_class("jsn.Decoder")
    with raises(ComponentError, "json", "JSONDecodr", "JSONDecoder"):
        load_class("json.JSONDecodr")
    with raises(ComponentError, "json", "decodr", "decoder"):
        load_class("json.decodr.JSONDecoder")
    with raises(ComponentError, "FileStore", "Indx", "Index"):
        load_class(f"{__name__}.FileStore.Indx")


def test_a_path_that_leads_to_a_value_is_refused() -> None:
    with raises(ComponentError, "NOT_A_CLASS"):
        load_class(f"{__name__}.NOT_A_CLASS")


def test_errors_of_a_path_name_the_spec() -> None:
    with raises(ComponentError, "store='jsn.Decoder'", "jsn"):
        build("jsn.Decoder")


def test_a_submodule_is_found_behind_a_function_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shadowed_package"
    package.mkdir()
    (package / "algo.py").write_text("class Algo: ...\ndef algo(): ...\n")
    (package / "__init__.py").write_text("from .algo import algo\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_class("shadowed_package.algo.Algo").__name__ == "Algo"


def test_a_module_that_lacks_its_own_dependency_raises_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_much.py").write_text("import package_that_is_not_there\nclass A: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with raises(ModuleNotFoundError, "package_that_is_not_there"):
        build("needs_much.A")


def test_a_built_in_part_whose_package_is_missing_tells_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sharpen

    (tmp_path / "room_for_tests.py").write_text("import absent_engine.core\nclass Part: ...\n")
    monkeypatch.setattr(sharpen, "__path__", [*sharpen.__path__, str(tmp_path)])
    with raises(MissingExtraError, "absent_engine"):
        build_component(
            "remote", expected_type=Store, spec_name="part", registry={"remote": "sharpen.room_for_tests.Part"}
        )


# -- constructors and factories ------------------------------------------------------------------------


def test_an_unknown_keyword_is_named_with_the_nearest() -> None:
    with pytest.raises(ComponentError) as caught:
        build({"type": FileStore, "pth": "x"})
    assert ": FileStore has no argument 'pth'. Did you mean 'path'?" in str(caught.value)
    assert str(caught.value).startswith("store={'type': <class ")


def test_an_unknown_keyword_like_no_other_lists_what_is_taken() -> None:
    with raises(ComponentError, "zzz", "thread_safe", "api_key"):
        build({"type": FileStore, "zzz": 1})
    with raises(ComponentError, "make_store", "zzz"):
        build({"type": make_store, "zzz": 1})


def test_unknown_keywords_are_refused_without_a_spec_too() -> None:
    with raises(ComponentError, "provided_kwargs=", "pth", 1, "FileStore"):
        instantiate_component(FileStore, {"pth": 1})


@pytest.mark.parametrize("spec", [NeedyStore, path_of(NeedyStore), {"type": NeedyStore}])
def test_a_constructor_that_needs_more_is_named_with_what_it_needs(spec: Any) -> None:
    with raises(ComponentError, "NeedyStore", "type"):
        build(spec)


def test_a_factory_that_needs_arguments_is_refused() -> None:
    with raises(ComponentError, "make_store_at"):
        build(make_store_at)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("spec", [make_store_later, lambda: make_store_later(), {"type": make_store_later}])
def test_an_async_factory_is_refused(spec: Any) -> None:
    with pytest.raises(ComponentError):
        build(spec)


def failing_factory() -> Store:
    raise TypeError("the user's own error")


@pytest.mark.parametrize("spec", [FailingStore, path_of(FailingStore), {"type": FailingStore}, failing_factory])
def test_an_error_of_the_users_own_code_passes_unchanged(spec: Any) -> None:
    with raises((KeyError, TypeError), "the user's own error") as caught:
        build(spec)
    assert type(caught.value) in (KeyError, TypeError)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename == __file__


# -- what errors show ----------------------------------------------------------------------------------


class Client:
    def __repr__(self) -> str:
        return "Client(url='redis://bob:hush@host', api_key='hush', tokens=['hush', 'hush'])"


class BrokenRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    "extra",
    [
        {"api_key": "hush"},
        {"openai_api_key": "hush"},
        {"apiKey": "hush"},
        {"TOKEN": {"deep": "hush"}},
        {"headers": {"Authorization": "Bearer hush"}},
        {"nested": [{"password": ["hush"]}]},
        {"client": Client()},
        {"u": "http://h/?token=hush&a=1"},
        {"u": "postgresql://bob:hush@host/db"},
    ],
)
def test_secrets_are_not_shown(extra: dict[str, Any]) -> None:
    with pytest.raises(ComponentError) as caught:
        build({"type": "nowhere", **extra})
    assert "hush" not in str(caught.value)
    assert "***" in str(caught.value)
    assert "'type': 'nowhere'" in str(caught.value)


@given(st.text(min_size=8).map("s3cr3t-{}".format), st.sampled_from(["token", "db_password", "api_key"]))
def test_no_text_under_a_secret_key_is_shown(secret: str, key: str) -> None:
    with pytest.raises(ComponentError) as caught:
        build({key: secret, "type": "nowhere"})
    assert "s3cr3t" not in str(caught.value)


def test_what_stands_beside_a_secret_is_shown() -> None:
    with raises(ComponentError, "store=", "token", "type", "nowhere", "max", 3):
        build({"token": "hush", "type": "nowhere", "max": 3})


def test_a_long_value_is_cut() -> None:
    with pytest.raises(ComponentError) as caught:
        build(["x" * 30_000])
    assert len(str(caught.value)) < 300


def test_a_value_without_a_working_repr_does_not_hide_the_error() -> None:
    with raises(ComponentError, "nowhere"):
        build({"type": "nowhere", "client": BrokenRepr()})


# -- imports -------------------------------------------------------------------------------------------


def test_the_room_imports_no_other_room() -> None:
    code = """
        import sys
        from sharpen.components import DEFAULT_REGISTRY
        assert "SQLiteStore" in DEFAULT_REGISTRY
        print(*{name.split(".")[1] for name in sys.modules if name.startswith("sharpen.")})
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert set(result.stdout.split()) - {"_version"} == {"checks", "components", "errors", "secrets"}


def test_the_old_module_paths_give_the_same_things() -> None:
    from sharpen import components
    from sharpen.trainer import init_utils, registry

    for module in (init_utils, registry):
        assert all(
            getattr(module, name) is getattr(components, name, components.DEFAULT_REGISTRY) for name in module.__all__
        )
