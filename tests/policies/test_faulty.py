"""Faulty policy sets: each is refused with the exact place, the path and a fix. `»` marks the place in the text."""
# ruff: noqa: E501  one fault, one line

from typing import NamedTuple

import pytest

from policies.errors import PolicyError, Problem
from policies.load import load_text

HASH = "sha256:" + "ab" * 32


class Faulty(NamedTuple):
    """One fault, and what its problem must say."""

    name: str
    yaml: str
    path: str
    message: str
    fix: str


def defaults(text: str) -> str:
    """A set with nothing but defaults."""
    return f"version: 1\ndefaults: {text}\n"


FAULTY = [
    # keys
    Faulty("unknown top key", "version: 1\n»modells: {}\n", "modells", "unknown key", "`models`"),
    Faulty(
        "unknown nested key",
        "version: 1\ndefaults:\n  limits:\n    rate:\n      »requests_per_minut: 5\n",
        "defaults.limits.rate.requests_per_minut",
        "unknown key",
        "did you mean `requests_per_minute`?",
    ),
    Faulty(
        "key of elsewhere",
        "version: 1\nteams:\n  a:\n    »max_prompt_tokens: 100\n",
        "teams.a.max_prompt_tokens",
        "unknown key",
        "belongs under `teams.a.context`",
    ),
    Faulty(
        "key of elsewhere in defaults",
        "version: 1\ndefaults:\n  »rate: {}\n",
        "defaults.rate",
        "unknown key",
        "belongs under `defaults.limits`",
    ),
    Faulty(
        "policy key at the top",
        "version: 1\n»timeouts: {total: 3s}\n",
        "timeouts",
        "unknown key",
        "belongs under `defaults`",
    ),
    Faulty(
        "near key of elsewhere",
        "version: 1\ndefaults:\n  »requests_per_minut: 5\n",
        "defaults.requests_per_minut",
        "unknown key",
        "`requests_per_minute`, which belongs under `defaults.limits.rate`",
    ),
    Faulty(
        "nothing like it",
        "version: 1\ndefaults: {»zzz: 1}\n",
        "defaults.zzz",
        "unknown key",
        "the keys here are objective",
    ),
    Faulty("dashes", defaults("{»structured-output: {}}"), "defaults.structured-output", "unknown", "`structured_output`"),
    Faulty("no space after colon", defaults("{»weight:2}"), 'defaults.weight:2', "unknown key", "`weight: 2`"),
    Faulty(
        "duplicate key",
        "version: 1\ndefaults:\n  weight: 1\n  »weight: 2\n",
        "defaults.weight",
        "twice; the first is in line 3",
        "keep one",
    ),
    Faulty("duplicate in quotes", 'version: 1\nteams: {a: {}, »"a": {}}\n', "teams.a", "twice", "keep one"),
    Faulty("key is a mapping", defaults("»{{ x }}").replace("»{{", "{»{"), "defaults", "a key must be a name", "quotes"),
    Faulty("version is missing", "»models: {}\n", "version", "missing", "add `version: …`"),
    Faulty("version is another", "version: »2\n", "version", "number 2", "write 1"),
    Faulty("version is text", 'version: »"1"\n', "version", "the text '1'", "write 1"),
    Faulty("model without id", "version: 1\nmodels:\n  chat: »{}\n", "models.chat.id", "missing", "add `id: …`"),
    # scalars
    Faulty("bare duration", defaults("{timeouts: {total: »300}}"), "defaults.timeouts.total", "300", "write 300s or 300ms"),
    Faulty("duration in words", defaults("{timeouts: {total: »30 sekunden}}"), "defaults.timeouts.total", "30 sek", "30s"),
    Faulty("negative duration", defaults("{timeouts: {total: »-5s}}"), "defaults.timeouts.total", "negative", "30s"),
    Faulty("zero duration", defaults("{timeouts: {total: »0s}}"), "defaults.timeouts.total", "not more than 0", "more than"),
    Faulty("sexagesimal", defaults("{timeouts: {total: »1:00}}"), "defaults.timeouts.total", "the text '1:00'", "such as"),
    Faulty("duration of YAML float", defaults("{timeouts: {total: ».5}}"), "defaults.timeouts.total", "number .5", "30s"),
    Faulty("never as text", defaults("{timeouts: {total: »never}}"), "defaults.timeouts.total", "'never'", "such as 30s"),
    Faulty("quoted number", defaults('{timeouts: {total: »"300"}}'), "defaults.timeouts.total", "'300'", "300s or 300ms"),
    Faulty("null duration", defaults("{report: {retention: »null}}"), "defaults.report.retention", "null", "such as 30s"),
    Faulty("ambiguous size", defaults("{limits: {request: {max_bytes: »2M}}}"), "defaults.limits.request.max_bytes", "2M", "2MiB"),
    Faulty("zero size", defaults("{limits: {request: {max_bytes: »0}}}"), "defaults.limits.request.max_bytes", "not more", "0"),
    Faulty("minutes for millions", defaults("{limits: {rate: {tokens_per_minute: »20m}}}"), "defaults.limits.rate.tokens_per_minute", "20m", "20M"),
    Faulty("fraction of a count", defaults("{context: {max_prompt_tokens: »10.5}}"), "defaults.context.max_prompt_tokens", "whole", "10"),
    Faulty("exponent", defaults("{context: {max_prompt_tokens: »1e3}}"), "defaults.context.max_prompt_tokens", "1e3", "write 1000"),
    Faulty("octal", defaults("{context: {max_prompt_tokens: »0o17}}"), "defaults.context.max_prompt_tokens", "the text '0o17'", "1200"),
    Faulty("leading zero", defaults("{context: {max_prompt_tokens: »0200}}"), "defaults.context.max_prompt_tokens", "octal", "write 200"),
    Faulty("hexadecimal", defaults("{priority: »0x10}"), "defaults.priority", "the text '0x10'", "whole number"),
    Faulty("underscores", defaults("{context: {max_prompt_tokens: »1_200}}"), "defaults.context.max_prompt_tokens", "1_200", "write 1200"),
    Faulty("quoted count", defaults("{context: {max_prompt_tokens: »'1200'}}"), "defaults.context.max_prompt_tokens", "the text '1200'", "quotes: 1200"),
    Faulty("count is true", defaults("{context: {max_displacement: »true}}"), "defaults.context.max_displacement", "read true", "1200"),
    Faulty("huge number", defaults(f"{{priority: »{'9' * 5000}}}"), "defaults.priority", "too large", "smaller"),
    Faulty("negative count", defaults("{context: {max_displacement: »-1}}"), "defaults.context.max_displacement", "negative", "count"),
    Faulty("no is text", defaults("{report: {store_text: »no}}"), "defaults.report.store_text", "the text 'no'", "write false"),
    Faulty("on is text", defaults("{context: {dedupe: {exact: »on}}}"), "defaults.context.dedupe.exact", "the text 'on'", "write true"),
    Faulty("quoted bool", defaults('{context: {dedupe: {exact: »"true"}}}'), "defaults.context.dedupe.exact", "'true'", "without quotes"),
    Faulty("switch is a bool", defaults("{context: {planning: »false}}"), "defaults.context.planning", "read false", "write off"),
    Faulty("switch is yes", defaults("{context: {planning: »yes}}"), "defaults.context.planning", "'yes'", "write on"),
    Faulty("near choice", defaults("{context: {order: »cache-aware}}"), "defaults.context.order", "cache-aware", "cache_aware"),
    Faulty("no such choice", defaults("{objective: »latency}"), "defaults.objective", "interactive, throughput", "interactive"),
    Faulty("percent", defaults("{limits: {concurrency: {kv_share: »50%}}}"), "defaults.limits.concurrency.kv_share", "50%", "write 0.5"),
    Faulty("share over one", defaults("{limits: {concurrency: {kv_share: »70}}}"), "defaults.limits.concurrency.kv_share", "more than 1", "0.7"),
    Faulty("negative share", defaults("{context: {rank: {min_score: »-0.1}}}"), "defaults.context.rank.min_score", "less than 0", "0 or more"),
    Faulty("infinite", defaults("{weight: ».inf}"), "defaults.weight", "the number .inf", "such as 0.5"),
    Faulty("not a number", defaults("{prices: {kv_gib_second: ».nan}}"), "defaults.prices.kv_gib_second", ".nan", "0.5"),
    Faulty("overflowing float", defaults("{weight: »1e999}"), "defaults.weight", "1e999", "such as 0.5"),
    Faulty("zero weight", defaults("{weight: »0}"), "defaults.weight", "not more than 0", "more than 0"),
    Faulty("alert over one", defaults("{limits: {quota: {alert_at: [0.8, »1.2]}}}"), "defaults.limits.quota.alert_at[1]", "more than 1", "0.012"),
    Faulty("number as text", "version: 1\nmodels: {m: {id: »12}}\n", "models.m.id", "the number 12", '"12"'),
    Faulty("null as text", "version: 1\nmodels: {m: {»id: }}\n", "models.m.id", "null", "write a text"),
    # shapes
    Faulty("null section", "version: 1\ndefaults:\n  »limits:\n  weight: 2\n", "defaults.limits", "read null", "write {}"),
    Faulty("list for mapping", "version: 1\nteams: »[a, b]\n", "teams", "read a list", "key: value"),
    Faulty("text for mapping", "version: 1\nteams: {a: »none}\n", "teams.a", "'none'", "key: value"),
    Faulty("text for list", defaults("{fallbacks: »chat}"), "defaults.fallbacks", "a list", "[chat]"),
    Faulty("mapping for value", defaults("{weight: »{a: 1}}"), "defaults.weight", "a mapping", "one value"),
    Faulty("root is a list", "»- version\n", "", "read a list", "key: value"),
    Faulty("root is text", "»hello\n", "", "the text 'hello'", "key: value"),
    Faulty("unknown stage", "version: 1\nstages: {»prod: {}}\n", "stages.prod", "'prod'", "did you mean production?"),
    Faulty("team name with a slash", "version: 1\nteams: {»a/b: {}}\n", "teams.a/b", "not a name", "without spaces"),
    Faulty("empty team name", "version: 1\nteams:\n  »: {}\n", 'teams.""', "read null", "write a text"),
    # YAML itself
    Faulty("tab", "version: 1\ndefaults:\n»\tweight: 1\n", "", "not YAML", "indent with spaces"),
    Faulty("anchor", "version: 1\nteams: {a: »&x {}}\n", "teams.a", "&x is an anchor", "merged deeply"),
    Faulty("alias", "version: 1\nteams: {a: »*x}\n", "teams.a", "*x is an alias", "write the value out"),
    Faulty("merge key", "version: 1\nteams:\n  a:\n    »<<: {weight: 2}\n", "teams.a.<<", "merge keys", "merged deeply"),
    Faulty("tag", "version: 1\nteams: {a: »!team {}}\n", "teams.a", "is a tag", "remove the tag"),
    Faulty("text tag", "version: »!!int 1\n", "version", "is a tag", "remove the tag"),
    Faulty("second document", "version: 1\n»---\nversion: 1\n", "", "second document", "a file of its own"),
    Faulty("old YAML", "%YAML 1.1\n»---\nversion: 1\n", "", "another YAML version", "%YAML"),
    Faulty("empty", "»", "", "empty", "`version: 1`"),
    Faulty("comments only", "»# nothing\n", "", "empty", "`version: 1`"),
    Faulty("open bracket", "version: 1\nteams: {a: {}\n»", "", "not YAML", "close the bracket"),
    Faulty("open quote", "version: 1\nteams: {'a: {}}\n»", "", "not YAML", "quotation mark"),
    Faulty("two colons", "version: 1\nmodels: {}\nteams: a»: b\n", "", "not YAML", "quote text"),
    Faulty("reserved sign", "version: 1\nteams: {a: »@b}\n", "", "not YAML", "keeps for itself"),
    Faulty("control character", "version: 1\nmodels: {a: {id: »\x00}}\n", "", "control character", "escaped"),
    Faulty("too deep", "version: 1\nteams: " + "[" * 32 + "»[" + "]" * 33 + "\n", "teams" + "[0]" * 32, "deeper", "flatten"),
    # meaning
    Faulty(
        "bad hash",
        "version: 1\nteams: {a: {keys: [{hash: »'sha256:XYZ'}]}}\n",
        "teams.a.keys[0].hash",
        "not the hash of a key",
        "64 lower-case hex digits",
    ),
    Faulty(
        "one key, two teams",
        f"version: 1\nteams:\n  a: {{keys: [{{hash: '{HASH}'}}]}}\n  b: {{keys: [{{hash: »'{HASH}'}}]}}\n",
        "teams.b.keys[0].hash",
        "teams.a.keys[0].hash (<text>:3)",
        "a key of its own",
    ),
    Faulty(
        "one key, two entries",
        f"version: 1\nteams:\n  a: {{keys: [{{hash: '{HASH}'}}, {{hash: »'{HASH}'}}]}}\n",
        "teams.a.keys[1].hash",
        "teams.a.keys[0].hash",
        "a key of its own",
    ),
    Faulty(
        "unknown model of a key",
        f"version: 1\nmodels: {{chat: {{id: x}}}}\nteams: {{a: {{keys: [{{hash: '{HASH}', models: [»chta]}}]}}}}\n",
        "teams.a.keys[0].models[0]",
        "no model 'chta'",
        "did you mean chat?",
    ),
    Faulty(
        "no model at all",
        f"version: 1\nteams: {{a: {{keys: [{{hash: '{HASH}', models: »[]}}]}}}}\n",
        "teams.a.keys[0].models",
        "allows no model",
        "remove the key",
    ),
    Faulty("unknown fallback", defaults("{fallbacks: [»big]}"), "defaults.fallbacks[0]", "no model 'big'", "known: none"),
    Faulty(
        "unknown app of a key",
        f"version: 1\nteams:\n  a: {{apps: {{helpdesk: {{}}}}, keys: [{{hash: '{HASH}', app: »helpdsk}}]}}\n",
        "teams.a.keys[0].app",
        "no app 'helpdsk'",
        "did you mean helpdesk?",
    ),
    Faulty(
        "no day of the calendar",
        f"version: 1\nteams: {{a: {{keys: [{{hash: '{HASH}', expires: »2027-02-30}}]}}}}\n",
        "teams.a.keys[0].expires",
        "2027-02-30",
        "2027-06-30",
    ),
    Faulty(
        "date in another order",
        f"version: 1\nteams: {{a: {{keys: [{{hash: '{HASH}', expires: »30.06.2027}}]}}}}\n",
        "teams.a.keys[0].expires",
        "YYYY-MM-DD",
        "2027-06-30",
    ),
    Faulty("no time zone", defaults("{limits: {quota: {time_zone: »Europe/Berln}}}"), "defaults.limits.quota.time_zone", "no time zone", "Europe/Berlin"),
    Faulty("time zone by path", defaults("{limits: {quota: {time_zone: »../../etc/passwd}}}"), "defaults.limits.quota.time_zone", "no time zone", "IANA"),
    Faulty("time zone folder", defaults("{limits: {quota: {time_zone: »Europe}}}"), "defaults.limits.quota.time_zone", "no time zone", "Europe/"),
    Faulty("placeholder", defaults("{context: {render: {document: »'{id} {body}'}}}"), "defaults.context.render.document", "{body}", "{text}"),
    Faulty("placeholder attribute", defaults("{context: {render: {document: »'{text.__class__}'}}}"), "defaults.context.render.document", "__class__", "{text}"),
    Faulty("stray brace", defaults("{context: {render: {document: »'{text} }'}}}"), "defaults.context.render.document", "does not parse", "}}"),
    Faulty("no text", defaults("{context: {render: {document: »'<{id}>'}}}"), "defaults.context.render.document", "leaves", "add {text}"),
    Faulty("pattern name", defaults("{context: {extract_documents: »numberd}}"), "defaults.context.extract_documents", "no known pattern", "numbered"),
    Faulty("pattern broken", defaults("{context: {extract_documents: »'(?P<text>a'}}"), "defaults.context.extract_documents", "compile", "numbered"),
    Faulty("pattern without text", defaults("{context: {extract_documents: »'<(.*?)>'}}"), "defaults.context.extract_documents", "group named text", "(?P<text>"),
    Faulty(
        "above a ceiling",
        "version: 1\nceilings: {timeouts: {total: 60s}}\nteams: {a: {apps: {b: {timeouts: {total: »5m}}}}}\n",
        "teams.a.apps.b.timeouts.total",
        "5m is above the ceiling 1m (<text>:2)",
        "write 1m or less",
    ),
    Faulty(
        "stage above a ceiling",
        "version: 1\nceilings: {limits: {quota: {tokens_per_day: 1M}}}\nstages: {pilot: {limits: {quota: {tokens_per_day: »2M}}}}\n",
        "stages.pilot.limits.quota.tokens_per_day",
        "2000000 is above the ceiling 1000000",
        "1000000 or less",
    ),
    Faulty("ceiling of a choice", "version: 1\nceilings: {objective: »throughput}\n", "ceilings.objective", "no ceiling", "defaults"),
    Faulty("ceiling of a price", "version: 1\nceilings: {prices: {output_per_1k: »1}}\n", "ceilings.prices.output_per_1k", "no ceiling", "defaults"),
    Faulty(
        "shares over one",
        defaults("{context: {sections: {history: {max_share: 0.6}, documents: {max_share: »0.7}}}}"),
        "defaults.context.sections.documents.max_share",
        "add up to 1.3",
        "1 or less in sum",
    ),
    Faulty(
        "shares over one only together",
        "version: 1\ndefaults: {context: {sections: {documents: {max_share: »0.7}}}}\n"
        "teams: {a: {apps: {b: {context: {sections: {history: {max_share: 0.4}}}}}}}\n",
        "defaults.context.sections.documents.max_share",
        "team a, app b",
        "1 or less in sum",
    ),
    Faulty(
        "min above max",
        defaults("{context: {sections: {facts: {min_tokens: »300, max_tokens: 200}}}}"),
        "defaults.context.sections.facts.min_tokens",
        "min_tokens 300",
        "200 or less",
    ),
    Faulty(
        "reserve fills the context",
        "version: 1\nmodels: {m: {id: x, max_context_tokens: 1024}}\ndefaults: {context: {reserve_output_tokens: »1024}}\n",
        "defaults.context.reserve_output_tokens",
        "1024 tokens of model m",
        "less than 1024",
    ),
    Faulty(
        "output over the context",
        "version: 1\nmodels: {m: {id: x, max_context_tokens: 1024, max_output_tokens: »2k}}\n",
        "models.m.max_output_tokens",
        "2000 output tokens",
        "1024 or less",
    ),
]  # fmt: skip


def problems_of(yaml: str) -> list[Problem]:
    """What is wrong with this text."""
    with pytest.raises(PolicyError) as caught:
        load_text(yaml)
    return caught.value.problems


@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.name.replace(" ", "-"))
def test_a_fault_is_named_with_its_place_and_a_fix(case: Faulty) -> None:
    """Exactly one problem, at the marked place."""
    before, mark, after = case.yaml.partition("»")
    assert mark
    (problem,) = problems_of(before + after)
    assert (problem.line, problem.column) == (before.count("\n") + 1, len(before) - before.rfind("\n"))
    assert problem.path == case.path
    assert case.message in problem.message
    assert case.fix in problem.fix


def test_all_problems_come_at_once_in_order() -> None:
    """Unknown keys, types, syntax-level refusals and meaning are found in one pass."""
    yaml = f"""version: 1
models:
  chat: {{id: a, max_context_tokens: 100}}
defaults: &d
  context: {{planning: yes, reserve_output_tokens: 100}}
  timeouts: {{total: 300, totl: 3s}}
  limits: {{quota: {{time_zone: Mars/Base}}}}
teams:
  a:
    <<: *d
    keys: [{{hash: '{HASH}', models: [chart]}}, {{hash: '{HASH}'}}]
    weight: heavy
    weight: 2
"""
    found = [(p.line, p.path) for p in problems_of(yaml)]
    assert found == [
        (4, "defaults"),
        (5, "defaults.context.planning"),
        (5, "defaults.context.reserve_output_tokens"),
        (6, "defaults.timeouts.total"),
        (6, "defaults.timeouts.totl"),
        (7, "defaults.limits.quota.time_zone"),
        (10, "teams.a.<<"),
        (10, "teams.a.<<"),
        (11, "teams.a.keys[0].models[0]"),
        (11, "teams.a.keys[1].hash"),
        (12, "teams.a.weight"),
        (13, "teams.a.weight"),
    ]


def test_a_problem_reads_as_one_line() -> None:
    """`file:line:column: path: message (fix)`, as editors and terminals understand it."""
    (problem,) = problems_of("version: 1\ndefaults: {timeouts: {total: 300}}\n")
    assert str(problem) == (
        "<text>:2:30: defaults.timeouts.total: read the number 300 where a duration such as 30s is expected "
        "(write 300s or 300ms)"
    )
    (problem,) = problems_of("")
    assert str(problem) == "<text>:1:1: the file is empty (start with `version: 1`)"


def test_a_key_pasted_for_its_hash_is_not_repeated() -> None:
    """A secret that stands where a hash belongs does not reach the error text."""
    with pytest.raises(PolicyError) as caught:
        load_text("version: 1\nteams: {a: {keys: [{hash: tg-very-secret}]}}\n")
    assert "very-secret" not in str(caught.value)


def test_a_wrong_value_hides_no_other_problem_and_makes_none_up() -> None:
    """A refused max_tokens is not taken for absent: no second problem about min and max."""
    yaml = defaults("{context: {sections: {facts: {max_tokens: 100}}}}") + (
        "teams: {a: {context: {sections: {facts: {min_tokens: 200, max_tokens: lots}}}}}\n"
    )
    (problem,) = problems_of(yaml)
    assert problem.path == "teams.a.context.sections.facts.max_tokens"


def test_a_billion_laughs_are_refused_at_once() -> None:
    """Aliases are never expanded, whatever they would make."""
    lines = ["version: 1", "a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    problems = problems_of("\n".join(lines))
    assert any("alias" in p.message for p in problems)
    assert len(problems) < 300


def test_deep_nesting_ends_in_a_problem() -> None:
    """No recursion limit is met, in any style of nesting."""
    for text in ("[" * 50_000, "a: " * 50_000, "{a: " * 20_000, "- " * 20_000, "? " * 5_000):
        assert problems_of(text)
