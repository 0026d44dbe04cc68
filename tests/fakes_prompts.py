"""Fifty prompts of many kinds for the real model: what clients send, and what trips systems up."""

from __future__ import annotations


def chat(*turns: str) -> str:
    """A conversation in the default model's own format; the user has the first turn."""
    roles = ("user", "assistant")
    marked = [f"<|im_start|>{roles[i % 2]}\n{turn}<|im_end|>\n" for i, turn in enumerate(turns)]
    return "".join(marked) + "<|im_start|>assistant\n"


def repeated(text: str, num_characters: int) -> str:
    """`text` over and over, cut to a length."""
    return (text * (1 + num_characters // len(text)))[:num_characters]


CHATS = (
    chat("What is the capital of France? Answer in one sentence."),
    chat("Write a haiku about an old harbour in the rain."),
    chat("Name three colours.", "Red, green and blue.", "And two more, please."),
    chat("Explain to a child why the sky is blue."),
    chat("Translate into Spanish: the library closes at six."),
    chat("hi"),
    chat("Is 91 a prime number?", "No: it is 7 times 13.", "And 97?"),
    chat("Give me a recipe for bread with only four ingredients."),
    chat("Summarise: The committee met on Tuesday and put the decision off until autumn."),
    chat("You are a pirate. Say how you would sail from Bristol to Lisbon."),
)
CODE = (
    "def fibonacci(n):\n    ",
    "import numpy as np\n\ndef softmax(x):\n",
    "#include <stdio.h>\n\nint main(void) {\n",
    "SELECT name, count(*) FROM orders\nWHERE",
    "<html>\n  <head>\n    <title>",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "for (let i = 0; i < items.length; i++) {\n\tif (items[i].done) {\n",
    '{"name": "Ada", "born": 1815, "languages": [',
    "$ git log --oneline\n",
    "    \t  if x == 1:\n\n\n\n    \t  ",
)
UNICODE = (
    "Der Zug nach Köln fährt um 12:45 Uhr ab, weil",
    "Ελληνικά: Η Αθήνα είναι",
    "今日は天気がいいので、",
    "Привет, как дела?",
    "مرحبا بالعالم",
    "🙂🙃🙂🙃🙂",
    "naïve café, piñata, Ångström, žluťoučký kůň",
    "e\u0301 e\u0301 e\u0301 \u200b\u200b",
    "∀x ∈ ℝ: x² ≥ 0, ∑ᵢ xᵢ =",
)
DIGITS = (
    "2, 3, 5, 7, 11, 13,",
    "3.14159265358979",
    "0000000000000000",
    "17 + 25 = 42\n8 + 9 = 17\n31 + 12 =",
    "2024-02-28, 2024-02-29, 2024-03-",
    "IP 192.168.0.1, port 50051, 0xDEADBEEF,",
)
LISTS = (
    "- milk\n- eggs\n- flour\n-",
    "1. Wake up\n2. Get dressed\n3.",
    "| city | country |\n|---|---|\n| Rome | Italy |\n| Oslo |",
    "Monday, Tuesday, Wednesday,",
    "a b c d e f g",
    "apples: 3\npears: 5\nplums:",
)
PROSE = (
    "The",
    " ",
    "Once upon a time there was a clockmaker who",
    "ONCE UPON A TIME THERE WAS A CLOCKMAKER WHO",
    "Dear Sir or Madam,\n\nI am writing to",
)
LONG = (
    repeated("The lighthouse keeper wrote down wind and weather every evening. ", 900),
    chat(repeated("Every sentence of this letter says the same thing again. ", 700) + "Why?"),
    repeated("x = f(x, y)\n", 480),
    repeated("42 7 1999 ", 330),
)

PROMPTS = (*CHATS, *CODE, *UNICODE, *DIGITS, *LISTS, *PROSE, *LONG)
