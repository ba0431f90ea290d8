"""Files as people write them, right and wrong (CONF-1, CONF-3, SEC-1, API-4).

The file is long for its tables of faults.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from iop.config.edge import EdgeConfig
from iop.config.fields import HostPort
from iop.config.load import load_edge, load_node, parse_edge, parse_node
from iop.errors import ConfigError

ROOT = Path(__file__).parents[3]
HASH = "ab" * 32


def faults(text: str, env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_edge(text, env=env or {})
    return caught.value.faults


def node_faults(text: str, env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_node(text, env=env or {})
    return caught.value.faults


def one(found: list[str], *parts: str) -> None:
    """Exactly one fault, which says all of ``parts``."""
    assert len(found) == 1, found
    for part in parts:
        assert part in found[0], found[0]


NODE = f"""
nodes:
  - id: gpu-1
    token_sha256: "{HASH}"
    providers:
      - {{id: p1, kind: vllm, base_url: "http://127.0.0.1:8000/v1", capacity: 4}}
"""


@pytest.mark.req("CONF-1")
def test_half_a_character_is_a_fault_of_its_own_and_hides_no_other() -> None:
    text = 'edge:\n  id: "\\ud800"\nhttp:\n  nope: 1\n  "a\\udfff": 1\nqueue: {timeout_ms: "${STRAY}"}\n'
    found = faults(text, {"STRAY": "5\udcff"})
    assert [line.split(": ")[:2] for line in found] == [
        ["edge.yaml:2", "edge.id"],
        ["edge.yaml:4", "http.nope"],
        ["edge.yaml:5", "http.a\ufffd"],
        ["edge.yaml:6", "queue.timeout_ms"],
    ]
    assert ["half a character" in line for line in found] == [True, False, True, True]


def test_a_character_that_json_writes_as_a_pair_is_that_character() -> None:
    text = NODE + 'models: [{id: "\\ud83d\\ude00", candidates: [{node: gpu-1, provider: p1, target: "\\u00e9"}]}]'
    model = parse_edge(text, env={}).models[0]
    assert (model.id, model.candidates[0].target) == ("\U0001f600", "\u00e9")


@pytest.mark.req("CONF-1")
def test_a_bad_candidate_is_not_called_an_absent_one() -> None:
    found = faults(NODE + "models: [{id: m, candidates: [{node: gpu-1, provider: p1}]}]")
    one(found, "models[0].candidates[0].target", "required")
    one(faults("models: [{id: m, candidates: []}]"), "models[0].candidates", "not be empty")


@pytest.mark.req("CONF-1")
def test_the_kinds_are_offered() -> None:
    found = faults(f"nodes: [{{id: n, token_sha256: '{HASH}', providers: [{{id: p, kind: x, base_url: 'http://h'}}]}}]")
    one(found, "kind", "'vllm'")
    assert "'ollama'" in found[0]


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize("text", ["[" * 5000, "a: " + "[" * 5000 + "]" * 5000, "{a: " * 5000, "[" * 40 + "]" * 40])
def test_absurd_nesting_is_called_that(text: str) -> None:
    one(faults(text), "nested deeper than 32")


@pytest.mark.req("CONF-3")
def test_sample_files_load_and_show_the_defaults() -> None:
    edge = load_edge(ROOT / "configs/edge.yaml", env={"IOP_TOKEN_GPU_1": "t"})
    for name in ("http", "transport", "admin", "queue", "recovery", "security"):
        section = getattr(edge, name)
        assert section == type(section)(), name
    provider = edge.nodes[0].providers[0]
    assert (provider.capacity, provider.long_capacity, provider.health.path) == (8, 2, "")
    assert edge.models[0].candidates[0].target == "Qwen/Qwen3-32B"

    node = load_node(ROOT / "configs/node.yaml", env={"IOP_NODE_TOKEN": "t"})
    assert node.node.edge == HostPort("127.0.0.1", 7443)
    assert (node.reconnect.max_attempts, node.reconnect.interval_sec) == (10, 10.0)
    assert node.node.allow_upstreams is None
    assert node.metrics.listen is None


@pytest.mark.req("CONF-3")
def test_an_empty_file_and_empty_sections_mean_the_defaults() -> None:
    bare = parse_edge("", base=Path("/etc/iop"))
    assert parse_edge("http:\nqueue:\nnodes:\n", base=Path("/etc/iop")) == bare
    assert bare.http.listen == HostPort("127.0.0.1", 8080)
    assert bare.edge.state_dir == Path("/etc/iop/state")
    assert (bare.queue.timeout_ms, bare.queue.max_waiters, bare.queue.max_waiters_per_principal) == (60000, 10000, 1000)
    assert bare.admin.listen == HostPort("127.0.0.1", 9090)
    assert parse_edge("admin: null").admin.listen is None
    assert parse_edge("admin: {listen: null}").admin.listen is None


@pytest.mark.req("CONF-1", "SEC-1")
@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("node:\n  edge: 10.0.0.1:7443\n  token_env: T\n  tls:\n    # ca: x\n", ":4: node.tls: nothing is written"),
        ("node: {edge: 10.0.0.1:7443, token_env: T, tls}", "node.tls: nothing is written"),
        ("node: {edge: 10.0.0.1:7443, token_env: T, tls: {}, allow_upstreams: }", "node.allow_upstreams: nothing is"),
    ],
)
def test_a_setting_whose_value_got_lost_is_not_its_default(text: str, where: str) -> None:
    one(node_faults(text, {"T": "t"}), where, "null for none")


def test_absent_limits_follow_their_neighbours() -> None:
    provider = parse_edge(NODE).nodes[0].providers[0]
    assert provider.effective_long_capacity == 4
    assert provider.first_response_timeout_ms is None  # the node knows what that means


def test_configuration_cannot_be_changed() -> None:
    config = parse_edge(NODE)
    with pytest.raises(ValueError, match="frozen"):
        config.http.listen = HostPort("0.0.0.0", 1)


@pytest.mark.req("CONF-1")
def test_all_faults_of_a_file_come_at_once_in_its_order() -> None:
    found = faults(
        """\
edge: {id: "edge 1"}
http:
  listen: "0.0.0.0:8080"
  api_kys: []
  max_body_bytes: -1
nodes:
  - id: gpu-1
    token_env: NOT_SET
    providers:
      - {id: p1, kind: vllm}
      - {id: p1, kind: echo, capacity: lots}
models:
  - id: m
    candidates: [{node: gpu-2, provider: p9, target: t}]
  - id: n
    aliases: [m]
    candidates: []
"""
    )
    expected = [
        ("edge.yaml:1: edge.id", "letters, digits"),
        ("edge.yaml:3: http.listen", "allow_anonymous"),
        ("edge.yaml:4: http.api_kys", "did you mean 'api_keys'?"),
        ("edge.yaml:5: http.max_body_bytes", "greater than or equal to 1"),
        ("edge.yaml:8: nodes[0].token_env", "NOT_SET is not set"),
        ("edge.yaml:10: nodes[0].providers[0].base_url", "required"),
        ("edge.yaml:11: nodes[0].providers[1].id", "'p1' is a provider of node 'gpu-1' already"),
        ("edge.yaml:11: nodes[0].providers[1].capacity", "valid integer"),
        ("edge.yaml:14: models[0].candidates[0].node", "no node 'gpu-2'; known: gpu-1"),
        ("edge.yaml:14: models[0].candidates[0].provider", "no provider 'p9'; known: p1"),
        ("edge.yaml:16: models[1].aliases[0]", "'m' is the id of model 'm' already"),
        ("edge.yaml:17: models[1].candidates", "not be empty"),
    ]
    assert len(found) == len(expected), found
    for line, (where, what) in zip(found, expected, strict=True):
        assert line.startswith(where), line
        assert what in line, line


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize(
    ("text", "where", "advice"),
    [
        ("http: {listen: 8080}", "http.listen", "put it in quotes"),
        ("http: {listen: '8080'}", "http.listen", "HOST:PORT"),
        ("http: {listen: '127.0.0.1:70000'}", "http.listen", "0 to 65535"),
        ("http: {listen: '::1:80'}", "http.listen", "brackets"),
        ("http: {max_body_bytes: true}", "http.max_body_bytes", "valid integer"),
        ("http: {max_body_bytes: 1.5}", "http.max_body_bytes", "valid integer"),
        ("http: {idle_timeout_sec: .inf}", "http.idle_timeout_sec", "finite"),
        ("http: {idle_timeout_sec: .nan}", "http.idle_timeout_sec", "finite"),
        ("http: {allow_anonymous: 'no'}", "http.allow_anonymous", "boolean"),
        ("http: {max_body_bytes: 600000000}", "http.max_body_bytes", "max_buffered_body_bytes"),
        ("http: [1]", "http", "object"),
        ("- 1", "edge.yaml", "sections"),
        ("just text", "edge.yaml", "sections"),
        ("https: {}", "https", "did you mean 'http'?"),
        ("zzz: {}", "zzz", "known here: admin, edge"),
        ("queue: {timeout_ms: 1, timeout_ms: 2}", "queue.timeout_ms", "given twice, first on line 1"),
        ("? [a, b]\n: 1", "edge.yaml", "keys are words"),
        ("http: {listen: 'a", "edge.yaml:1", "not valid YAML"),
        ("http: &x {tls: *x}", "edge.yaml", "nested deeper"),
        ("http: {listen: !!python/name:os.system x}", "edge.yaml:1", "not valid YAML"),
        ("edge: {id: ${NAME}}", "edge.yaml:1", "quoted"),
        ("edge: {id: '${}'}", "edge.id", "write ${NAME}"),
        ("edge: {id: '${NOPE}'}", "edge.id", "NOPE is not set"),
        ("admin: {listen: '127.0.0.1:8080'}", "admin.listen", "is http.listen already"),
        ("transport: {max_frame_bytes: 1024}", "transport.max_frame_bytes", "131072"),
        ("models: [{id: '', candidates: [{}]}]", "models[0].id", "printable"),
        ("http: {api_keys: [{principal: a}]}", "http.api_keys[0]", "key_env, key_file or key_sha256"),
        ("http: {api_keys: [{principal: a, key_sha256: secret}]}", "http.api_keys[0].key_sha256", "64 hex digits"),
        ("http: {api_keys: [{principal: a, key_env: 'sk-1'}]}", "http.api_keys[0].key_env", "NAME of an environment"),
    ],
)
def test_a_fault_names_its_place_and_what_to_write(text: str, where: str, advice: str) -> None:
    found = faults(text)
    assert any(where in line and advice in line for line in found), found


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize(
    ("provider", "where", "advice"),
    [
        ("{id: x, kind: ollama, base_url: 'http://h:11434'}", "base_url", "with the /v1"),
        ("{id: x, kind: ollama}", "base_url", "required"),
        ("{id: x, kind: magic, base_url: 'http://h/v1'}", "kind", "'vllm'"),
        ("{id: x, kind: vllm}", "base_url", "required"),
        ("{id: x, kind: echo, base_url: 'http://h'}", "base_url", "built into"),
        ("{id: x, kind: vllm, base_url: 'ftp://h'}", "base_url", "http://HOST"),
        ("{id: x, kind: vllm, base_url: 'http://u:p@h/v1'}", "base_url", "api_key_env"),
        ("{id: x, kind: vllm, base_url: 'http://h/v1?k=v'}", "base_url", "query"),
        ("{id: x, kind: vllm, base_url: 'http://h:99999'}", "base_url", "not a URL"),
        ("{id: x, kind: vllm, base_url: 'unix:relative'}", "base_url", "unix:/path"),
        ("{id: x, kind: echo, capacity: 2, long_capacity: 3}", "long_capacity", "larger than capacity (2)"),
        ("{id: x, kind: echo, capacity: '2', long_capacity: '3'}", "long_capacity", "larger than capacity (2)"),
        ("{id: x, kind: echo, response_stall_timeout_ms: 0}", "response_stall_timeout_ms", "equal to 1"),
        ("{id: x, kind: echo, response_stall_timeout_ms: 86400001}", "response_stall_timeout_ms", "equal to 86400000"),
        ("{id: x, kind: echo, health: {path: health}}", "health.path", "that begins with /: /health"),
        (f"{{id: x, kind: echo, health: {{path: /{'x' * 1024}}}}}", "health.path", "that begins with /"),
    ],
)
def test_a_provider_is_checked(provider: str, where: str, advice: str) -> None:
    one(
        faults(f"nodes: [{{id: n, token_sha256: '{HASH}', providers: [{provider}]}}]"),
        f"nodes[0].providers[0].{where}",
        advice,
    )


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("https://models.example.org", "https://models.example.org"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("unix:/run/vllm.sock", "unix:/run/vllm.sock"),
        ("unix:/run/vllm.sock:/v1", "unix:/run/vllm.sock:/v1"),
    ],
)
def test_base_urls(url: str, kept: str) -> None:
    text = f"nodes: [{{id: n, token_sha256: '{HASH}', providers: [{{id: p, kind: vllm, base_url: '{url}'}}]}}]"
    assert parse_edge(text).nodes[0].providers[0].base_url == kept


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("security: {mode: managed}", "security.mode"),
        ("security: {ca: x}", "security"),
        ("presets: [{id: x}]", "presets"),
        (f"nodes: [{{id: n, token_sha256: '{HASH}', workspaces: [{{ref: app}}]}}]", "nodes[0].workspaces"),
    ],
)
def test_what_this_version_does_not_do_is_refused(text: str, where: str) -> None:
    one(faults(text), f": {where}: ", "version")


@pytest.mark.req("SEC-1")
def test_plaintext_nodes_come_over_loopback_unless_allowed() -> None:
    one(faults("transport: {listen: '0.0.0.0:7443'}"), "transport.listen", "allow_plaintext: true")
    one(faults("transport: {listen: ':7443'}"), "transport.listen", "allow_plaintext: true")
    assert parse_edge("transport: {listen: '0.0.0.0:7443', allow_plaintext: true}")
    for local in ("localhost:1", "127.8.9.1:1", "[::1]:1"):
        assert parse_edge(f"transport: {{listen: '{local}'}}")


@pytest.mark.req("API-4")
def test_without_keys_clients_come_over_loopback_unless_allowed() -> None:
    one(faults("http: {listen: '192.0.2.1:8080'}"), "http.listen", "allow_anonymous: true")
    assert parse_edge("http: {listen: '192.0.2.1:8080', allow_anonymous: true}")
    assert parse_edge(f"http: {{listen: '192.0.2.1:8080', api_keys: [{{principal: a, key_sha256: '{HASH}'}}]}}")


@pytest.mark.req("POOL-1", "CONF-1")
def test_references_between_models_nodes_and_providers() -> None:
    second = f"""
  - id: gpu-2
    token_sha256: "{"cd" * 32}"
    providers:
      - {{id: p1, kind: echo}}
      - {{id: p2, kind: echo}}
  - id: gpu-1
    token_sha256: "{"ef" * 32}"
"""
    models = """
models:
  - id: a
    aliases: [x, x, b]
    candidates:
      - {node: gpu-1, provider: p2, target: t}
      - {node: gpu-1, provider: p1, target: t}
      - {node: gpu-1, provider: p1, target: t}
  - id: b
    candidates: [{node: gpu-1, provider: p1, target: t}]
  - id: a
    candidates: [{node: gpu-1, provider: p1, target: t}]
"""
    found = faults(NODE + second + models)
    for part in (
        "nodes[1].providers[0].id: 'p1' is a provider of node 'gpu-1' already",
        "nodes[2].id: 'gpu-1' is used by an earlier node",
        "models[0].aliases[1]: 'x' is an alias of model 'a' already",
        "models[0].aliases[2]: 'b' is the id of model 'b' already",
        "models[0].candidates[0].provider: 'p2' is a provider of node 'gpu-2'",
        "models[0].candidates[2]: the same provider and target",
        "models[2].id: 'a' is a model already",
    ):
        assert any(part in line for line in found), (part, found)
    assert len(found) == 7


@pytest.mark.req("CONF-1")
def test_variables_fill_values_but_bring_no_structure() -> None:
    text = """
edge:
  id: ${NAME}
http:
  listen: "127.0.0.1:${PORT:-0}"
  max_body_bytes: ${BODY}
queue: {timeout_ms: "${WAIT}"}
models:
  - id: "${COST}"
    aliases: ["${BODY}"]
    candidates: [{node: n, provider: p, target: "$${literal}"}]
nodes:
  - {id: n, token_env: T, providers: [{id: p, kind: echo}]}
"""
    env = {"NAME": "e1", "BODY": "1024", "WAIT": "250", "COST": "{a: [1]}", "T": "tok"}
    config = parse_edge(text, env=env)
    assert config.edge.id == "e1"
    assert config.http.listen.port == 0
    assert config.http.max_body_bytes == 1024
    assert config.queue.timeout_ms == 250
    assert config.models[0].id == "{a: [1]}"
    assert config.models[0].aliases == ("1024",)
    assert config.models[0].candidates[0].target == "${literal}"


@pytest.mark.req("CONF-1")
def test_an_unset_variable_is_one_fault_and_no_more() -> None:
    one(faults("http: {max_body_bytes: '${UNSET}'}"), "http.max_body_bytes", "UNSET is not set")


def test_merge_keys_and_anchors_work() -> None:
    text = f"""
nodes:
  - id: n
    token_sha256: "{HASH}"
    providers:
      - &base {{id: p1, kind: vllm, base_url: "http://127.0.0.1:1", capacity: 3}}
      - {{<<: *base, id: p2}}
"""
    providers = parse_edge(text).nodes[0].providers
    assert [(p.id, p.capacity) for p in providers] == [("p1", 3), ("p2", 3)]


def test_a_bomb_of_aliases_is_refused_quickly() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert any("nested deeper" in line for line in faults("\n".join(lines)))


@pytest.mark.req("SEC-4", "CONF-1")
def test_secrets_are_kept_as_hashes_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sekret-key\n")
    text = """
http: {api_keys: [{principal: alice, key_file: key}]}
nodes: [{id: n, token_env: TOKEN}]
"""
    config = parse_edge(text, base=tmp_path, env={"TOKEN": "sekret-token"})
    assert config.http.api_keys[0].key_hash == hashlib.sha256(b"sekret-key").digest()
    assert config.nodes[0].token_hash == hashlib.sha256(b"sekret-token").digest()
    node = parse_node("node: {edge: 'e:1', token_env: TOKEN}", env={"TOKEN": "sekret-token"})
    assert node.node.token.get_secret_value() == "sekret-token"
    for shown in (repr(config), str(config), config.model_dump_json(), repr(node), node.model_dump_json()):
        assert "sekret" not in shown


@pytest.mark.req("SEC-4")
@pytest.mark.parametrize("bad", ["sekret\nsekret", "sekret ", "sékret", "sekret" * 400])
def test_a_bad_secret_is_refused_by_its_source_alone(bad: str) -> None:
    found = faults("nodes: [{id: n, token_env: TOKEN}]", {"TOKEN": bad})
    one(found, "nodes[0].token_env", "TOKEN")
    assert "kret" not in found[0]


@pytest.mark.req("CONF-1")
def test_a_secret_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nodes\[0\]\.token_file: cannot read .*nope: No such file"):
        parse_edge("nodes: [{id: n, token_file: nope}]", base=tmp_path)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="should hold one secret"):
        parse_edge("nodes: [{id: n, token_file: empty}]", base=tmp_path)


def test_two_entries_do_not_share_a_secret() -> None:
    one(
        faults("nodes: [{id: a, token_env: T}, {id: b, token_env: U}]", {"T": "same", "U": "same"}),
        "nodes[1]",
        "same token as node 'a'",
    )
    keys = f"[{{principal: a, key_sha256: '{HASH}'}}, {{principal: b, key_sha256: '{HASH.upper()}'}}]"
    one(faults(f"http: {{api_keys: {keys}}}"), "http.api_keys[1]", "same key")


@pytest.mark.req("SUP-2")
@pytest.mark.parametrize(
    ("text", "where", "advice"),
    [
        ("node: {token_env: T}", "node.edge", "required"),
        ("reconnect: {}", "node", "required"),
        ("node: {edge: 'e:1'}", "node", "token_env or token_file"),
        ("node: {edge: 'e:0', token_env: T}", "node.edge", "port 0"),
        ("node: {edge: 'e:1', token: abc}", "node.token", "did you mean"),
        ("node: {edge: 'e:1', token_env: T, tls: {ca: x}}", "node.tls.ca", "cannot read"),
        ("node: {edge: 'e:1', token_env: T, allow_workspaces: [x]}", "node.allow_workspaces", "version"),
        ("node: {edge: 'e:1', token_env: T, allow_upstreams: ['h']}", "node.allow_upstreams[0]", "HOST:PORT"),
        ("node: {edge: 'e:1', token_env: T}\nstore: {url: 'sqlite:x'}", "store.url", "file:PATH"),
        ("node: {edge: 'e:1', token_env: T}\nstore: {url: 'file:'}", "store.url", "file:PATH"),
        ("node: {edge: 'e:1', token_env: T}\nstore: {url: 3}", "store.url", "file:PATH"),
        ("node: {edge: 'e:1', token_env: T}\nmetrics: {listen: '127.0.0.1'}", "metrics.listen", "HOST:PORT"),
        ("node: {edge: 'e:1', token_env: T}\nreconnect: {max_attempts: -1}", "reconnect.max_attempts", "equal to 0"),
        (
            "node: {edge: 'e:1', token_env: T}\nreconnect: {max_attempts: 0, interval_sec: 0}",
            "reconnect.interval_sec",
            "unlimited attempts",
        ),
    ],
)
def test_a_node_file_is_checked(text: str, where: str, advice: str) -> None:
    found = node_faults(text, {"T": "tok"})
    assert any(f": {where}: " in line and advice in line for line in found), found


@pytest.mark.req("EXEC-9")
@pytest.mark.parametrize(
    ("section", "kept"),
    [
        ("", "file:{base}/iop.db?cache=shared&mode=rwc"),
        ("store: {}", "file:{base}/iop.db?cache=shared&mode=rwc"),
        ("store: {url: 'file:sub/x.db'}", "file:{base}/sub/x.db"),
        ("store: {url: 'file:/var/lib/iop.db?mode=rwc'}", "file:/var/lib/iop.db?mode=rwc"),
        ("store: {url: 'file::memory:'}", "file::memory:"),
        ("store: {url: null}", None),
    ],
)
def test_a_run_store_lies_beside_the_file_unless_it_says_otherwise(
    tmp_path: Path, section: str, kept: str | None
) -> None:
    folder = tmp_path / "with ?and#"
    folder.mkdir()
    (folder / "node.yaml").write_text(f"node: {{edge: 'e:1', token_env: T}}\n{section}\n")
    url = load_node(folder / "node.yaml", env={"T": "t"}).store.url
    assert url == (kept.format(base=f"{tmp_path}/with%20%3Fand%23") if kept is not None else None)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_edge(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"edge: {id: \xff}")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_edge(tmp_path / "latin.yaml")
    (tmp_path / "big.yaml").write_bytes(b"#" * (5 << 20))
    with pytest.raises(ConfigError, match="larger than 4 MiB"):
        load_edge(tmp_path / "big.yaml")


def test_sections_can_be_built_in_python_too() -> None:
    assert EdgeConfig().http.listen == HostPort("127.0.0.1", 8080)


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize(
    ("origins", "kept"),
    [
        (["*"], ("*",)),
        (["HTTPS://App.Example.org", "http://localhost:3000"], ("https://app.example.org", "http://localhost:3000")),
        (["http://[::1]:8080", "tauri://localhost"], ("http://[::1]:8080", "tauri://localhost")),
        (["*", "https://a"], None),
        (["https://a/"], None),
        (["https://a/b"], None),
        (["https://a:443"], None),
        (["http://a:80"], None),
        (["a.example"], None),
        (["null"], None),
        (["https://*.a"], None),
        (["https://a\r\nx: y"], None),
    ],
)
def test_web_origins_are_written_as_browsers_send_them(origins: list[str], kept: tuple[str, ...] | None) -> None:
    text = f"http: {{cors_origins: {json.dumps(origins)}}}"
    if kept is not None:
        assert parse_edge(text).http.cors_origins == kept
        return
    with pytest.raises(ConfigError, match=r"http\.cors_origins"):
        parse_edge(text)
