"""The repr of registries, their entries and media."""

from trunkline import File, Image, Server


def test_registry_repr_shows_kind_and_some_keys() -> None:
    server = Server("t")
    assert repr(server.tools) == "<Registry of kind 'tool': empty>"
    for number in range(12):
        server.add_tool(lambda: None, name=f"t{number}")
    first = ", ".join(f"'t{number}'" for number in range(10))
    assert repr(server.tools) == f"<Registry of kind 'tool': {first}, … (12 in all)>"


def test_entry_repr_shows_its_key() -> None:
    server = Server("t")
    server.add_tool(lambda: None, name="act")
    server.add_resource("doc://1", "text")
    server.add_resource("doc://{name}", lambda name: name)
    server.add_prompt("Hello {name}", name="greet")
    server.add_completion(["Ada"], argument="name", prompt="greet")
    kept = [server.tools, server.resources, server.templates, server.prompts]
    assert [repr(registry.all()) for registry in kept] == [
        "[ToolEntry('act')]",
        "[ResourceEntry('doc://1')]",
        "[TemplateEntry('doc://{name}')]",
        "[PromptEntry('greet')]",
    ]
    (completer,) = server.completions
    assert repr(completer) == f"CompletionEntry({completer.key!r})"


def test_media_repr_has_no_bytes() -> None:
    assert repr(Image(b"secret", "image/png")) == "<Image 'image/png', 6 bytes>"
    assert repr(File(b"secret", "text/plain", uri="file:///s")) == "<File 'text/plain', 6 bytes>"
