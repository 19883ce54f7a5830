"""A prompt that asks for a review of code.

python examples/code_review.py
"""

from trunkline import PromptMessage, Server, TextContent

server = Server("code review", version="1.0")


@server.prompt
async def code_review(language: str, style: str = "default") -> list[PromptMessage]:
    """Review code for quality issues.

    Args:
        language: Programming language
        style: Code style guide
    """
    return [
        PromptMessage("user", TextContent(f"Review {language} code using {style} style.")),
        PromptMessage("assistant", TextContent("Show me the code.")),
    ]


@server.completion(prompt="code_review", argument="language")
async def languages(value: str) -> list[str]:
    """The languages with a prefix."""
    return [name for name in ("erlang", "python", "rust") if name.startswith(value)]


if __name__ == "__main__":
    server.run()
