"""Tasks with files: the files before, the instruction, the files after, and a command that solves the task."""

import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

WORDS = [
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbor",
    "island",
    "jetty",
    "kelp",
    "lagoon",
    "meadow",
    "north",
    "opal",
    "pine",
]

Files = dict[str, str]
"""Path below the work directory → text."""


class Task(NamedTuple):
    instruction: str
    before: Files
    after: Files
    gold: str
    """A shell command that solves the task."""


def sentence(numbers: random.Random, length: int) -> str:
    return " ".join(numbers.choice(WORDS) for _ in range(length))


def text(numbers: random.Random, lines: int) -> str:
    return "".join(f"{sentence(numbers, numbers.randint(2, 6))}\n" for _ in range(lines))


def names(numbers: random.Random, count: int) -> list[str]:
    return [f"{word}{numbers.randint(1, 99)}" for word in numbers.sample(WORDS, count)]


def rename(numbers: random.Random) -> Task:
    old, new = numbers.sample(["txt", "md", "log", "dat", "text"], 2)
    folder, other = numbers.sample(WORDS, 2)
    before: Files = {}
    for index, name in enumerate(names(numbers, 8)):
        extension = old if index % 2 else numbers.choice(["csv", "json"])
        before[f"{folder if index < 6 else other}/{name}.{extension}"] = text(numbers, 2)
    after = {
        path.removesuffix(f".{old}") + f".{new}"
        if path.startswith(f"{folder}/") and path.endswith(f".{old}")
        else path: content
        for path, content in before.items()
    }
    return Task(
        f"In the directory {folder}, rename every file that ends in .{old} so that it ends in .{new} instead. "
        f"Leave all "
        "other files as they are.",
        before,
        after,
        f'cd {folder} && for f in *.{old}; do mv "$f" "${{f%.{old}}}.{new}"; done',
    )


def count_lines(numbers: random.Random) -> Task:
    word = numbers.choice(WORDS)
    before = {
        f"logs/{name}.log": text(numbers, numbers.randint(5, 40)) for name in names(numbers, 5)
    }
    lines = [line for content in before.values() for line in content.splitlines()]
    count = sum(word in line.split() for line in lines)
    return Task(
        f"How many lines in the files of the directory logs contain the word {word}? Write the number, and "
        f"nothing else, "
        "into the file answer.txt.",
        before,
        {**before, "answer.txt": f"{count}\n"},
        f"cat logs/*.log | grep -cw {word} > answer.txt",
    )


def merge_tables(numbers: random.Random) -> Task:
    rows: list[tuple[int, str]] = []
    before: Files = {}
    keys = iter(numbers.sample(range(1, 999), 30))
    for name in names(numbers, 3):
        own = [(next(keys), numbers.choice(WORDS)) for _ in range(numbers.randint(3, 9))]
        before[f"tables/{name}.csv"] = "id,name\n" + "".join(f"{i},{n}\n" for i, n in own)
        rows += own
    backwards = numbers.random() < 0.5
    rows.sort(reverse=backwards)
    merged = "id,name\n" + "".join(f"{i},{n}\n" for i, n in rows)
    order = "descending" if backwards else "ascending"
    flag = "r" if backwards else ""
    return Task(
        "The files in the directory tables are CSV files with the header id,name. Write all their rows into one file "
        f"merged.csv, with the header once at its top, in {order} numeric order of the id. Leave the tables as "
        f"they are.",
        before,
        {**before, "merged.csv": merged},
        f"(echo id,name; tail -q -n +2 tables/*.csv | sort -t, -k1,1n{flag}) > merged.csv",
    )


def move_large(numbers: random.Random) -> Task:
    limit = numbers.randint(200, 600)
    before: Files = {}
    for name in names(numbers, 9):
        size = numbers.choice([limit - 1, limit, limit + 1, limit // 2, limit * 2])
        before[f"inbox/{name}.bin"] = "x" * size
    after = {
        path.replace("inbox/", "large/") if len(content) > limit else path: content
        for path, content in before.items()
    }
    return Task(
        f"Move every file in the directory inbox that is larger than {limit} bytes into a new directory large.",
        before,
        after,
        f"mkdir large && find inbox -type f -size +{limit}c -exec mv {{}} large/ \\;",
    )


def replace_word(numbers: random.Random) -> Task:
    old, new, kept = numbers.sample(WORDS, 3)
    before: Files = {}
    for index, name in enumerate(names(numbers, 6)):
        folder = ["src", f"src/{kept}", "src/deep/er"][index % 3]
        before[f"{folder}/{name}.txt"] = text(numbers, 4) + f"{old} {old}\n"
    after = {
        path: content if path.startswith(f"src/{kept}/") else content.replace(old, new)
        for path, content in before.items()
    }
    return Task(
        f"In all files below the directory src, at any depth, replace the word {old} by {new} wherever it stands, but "
        f"leave the files below src/{kept} as they are.",
        before,
        after,
        f"find src -type f -not -path 'src/{kept}/*' -exec sed -i 's/\\b{old}\\b/{new}/g' {{}} +",
    )


def remove_duplicates(numbers: random.Random) -> Task:
    contents = [text(numbers, 2) for _ in range(4)]
    before = {f"photos/{name}.raw": numbers.choice(contents) for name in names(numbers, 9)}
    after: Files = {}
    for path in sorted(before):
        if before[path] not in after.values():
            after[path] = before[path]
    return Task(
        "Some files in the directory photos have the same content. Of each set of equal files keep only the one whose "
        "name comes first in alphabetical order (by bytes), and delete the others.",
        before,
        after,
        "cd photos && LC_ALL=C ls | while read f; do h=$(md5sum < $f | cut -c1-32); "
        'case " $seen " in *" $h "*) rm $f;; *) seen="$seen $h";; esac; done',
    )


def make_tree(numbers: random.Random) -> Task:
    lines, after = [], {}
    for name in names(numbers, 6):
        folder = "/".join(numbers.sample(WORDS, numbers.randint(1, 3)))
        value = numbers.randint(1, 9999)
        lines.append(f"{folder}/{name}.cfg={value}")
        after[f"out/{folder}/{name}.cfg"] = f"value: {value}\n"
    before = {"manifest.txt": "".join(f"{line}\n" for line in lines)}
    return Task(
        "Every line of manifest.txt reads path=value. For each line create the file at that path below a new directory "
        "out, with the one line `value: ` and the value as its content.",
        before,
        {**before, **after},
        'while IFS== read -r path value; do mkdir -p "out/$(dirname $path)"; '
        'echo "value: $value" > "out/$path"; done < manifest.txt',
    )


def top_visitors(numbers: random.Random) -> Task:
    top = numbers.randint(2, 4)
    addresses = [f"10.0.{numbers.randint(0, 9)}.{numbers.randint(1, 99)}" for _ in range(7)]
    counts = numbers.sample(range(2, 40), len(addresses))
    visits = [a for a, count in zip(addresses, counts, strict=True) for _ in range(count)]
    numbers.shuffle(visits)
    log = "".join(f"{address} GET /{numbers.choice(WORDS)}\n" for address in visits)
    ranked = Counter(visits).most_common(top)
    return Task(
        f"Every line of access.log begins with an address. Write the {top} addresses with the most lines into "
        f"top.txt, one "
        "on a line as `address count`, the one with the most lines first.",
        {"access.log": log},
        {"access.log": log, "top.txt": "".join(f"{a} {c}\n" for a, c in ranked)},
        f"cut -d' ' -f1 access.log | sort | uniq -c | sort -k1,1nr | head -{top} | "
        "awk '{print $2, $1}' > top.txt",
    )


TEMPLATES: list[Callable[[random.Random], Task]] = [
    rename,
    count_lines,
    merge_tables,
    move_large,
    replace_word,
    remove_duplicates,
    make_tree,
    top_visitors,
]
