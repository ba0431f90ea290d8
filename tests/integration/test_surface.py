"""What is where, by which method and for which web page: the whole surface for clients (API-1, API-4)."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

import pytest

from iop.edge.api.cors import Cors
from iop.edge.api.openapi import openapi
from iop.edge.api.routes import OTHERS, PAGES, RATES, ROUTES, spellings
from tests.support.aio import async_test
from tests.support.edge import ask, edge, get
from tests.support.http import Answer, Client, chat, post

KEY = "sk-1"
KEYS = {"api_keys": [{"principal": "alice", "key_sha256": hashlib.sha256(KEY.encode()).hexdigest()}]}
KEYED = f"Authorization: Bearer {KEY}"
READ, WRITE = "GET, HEAD, OPTIONS", "POST, OPTIONS"

# ---- methods --------------------------------------------------------------------------------------------------------


@pytest.mark.req("API-1")
@async_test()
async def test_head_is_get_without_its_body() -> None:
    async with edge() as (_, address):
        for path in [*(page.decode() for page in PAGES), "/v1/models/small", "/v1/models/none", "/v1/none"]:
            got, head = await get(address, path), await get(address, path, method="HEAD")
            own = ("date", "x-request-id")
            assert head.body == b""
            assert head.status == got.status, path
            length = int(head.get("content-length") or 0)
            # The body of an error carries nothing that differs.
            assert length == len(got.body) > 0
            assert [field for field in head.headers if field[0] not in own] == [
                field for field in got.headers if field[0] not in own
            ]


@pytest.mark.req("API-1", "API-5")
@async_test()
async def test_each_path_says_what_it_takes() -> None:
    async with edge() as (_, address):
        paths = {path.decode(): READ for path in PAGES} | {path.decode(): WRITE for path in ROUTES}
        paths |= {"/v1/models/a/b": READ, "/v1/audio/speech": WRITE, "/healthz?verbose=1": READ}
        for path, allow in paths.items():
            answer = await get(address, path, method="OPTIONS")
            assert (answer.status, answer.get("allow"), answer.body) == (204, allow, b""), path
            assert answer.get("content-length") is None
            for method in ("DELETE", "GET" if allow == WRITE else "POST", "HEAD" if allow == WRITE else "PUT"):
                answer = await get(address, path, method=method)
                assert (answer.status, answer.get("allow")) == (405, allow), (method, path)
        answer = await get(address, "*", method="OPTIONS")
        assert (answer.status, answer.get("allow")) == (204, "GET, HEAD, POST, OPTIONS")
        for path in ("/none", "/v1/none/", "/v1/load_lora_adapter"):
            assert (await get(address, path, method="OPTIONS")).status == 404


@pytest.mark.req("API-5")
@async_test()
async def test_every_answer_has_an_id_of_its_own() -> None:
    async with edge() as (_, address):
        ids = []
        for method, path in (
            *(("GET", page.decode()) for page in PAGES),
            *(("OPTIONS", path) for path in ("*", "/v1/models", "/v1/chat/completions", "/none")),
            ("GET", "/v1/models/small"), ("GET", "/none"), ("DELETE", "/healthz"),
        ):  # fmt: skip
            found = (await get(address, path, method=method)).all("x-request-id")
            assert len(found) == 1, (method, path)
            ids += found
        assert len(set(ids)) == len(ids)


@pytest.mark.req("API-1")
@async_test()
async def test_query_strings_of_health_are_nobody_s_business() -> None:
    async with edge() as (_, address):
        for path in ("/healthz?a=b", "/readyz?", "/health?x=%00"):
            assert (await get(address, path)).json == {"status": "ok"}


@pytest.mark.req("API-1", "SUP-5")
@async_test()
async def test_readiness_ends_with_the_drain_on_both_listeners() -> None:
    async with edge() as (one, address):
        admin = ("127.0.0.1", one.admin_port)
        for place in (address, admin):
            for path in ("/healthz", "/readyz"):
                assert (await get(place, path)).status == 200
        client = await Client.connect(address)
        client.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await client.answer()
        await one.drain()
        client.send(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        told = [await client.answer(), await get(admin, "/readyz")]
        assert [(answer.status, answer.get("retry-after")) for answer in told] == [(503, "5")] * 2
        assert [answer.json for answer in told] == [{"status": "draining"}] * 2
        assert (await get(admin, "/readyz", method="HEAD")).status == 503
        assert (await get(admin, "/healthz")).status == 200
        answer = await get(admin, "/healthz", method="POST")
        assert (answer.status, answer.get("allow")) == (405, "GET, HEAD")
        await client.close()


# ---- models ---------------------------------------------------------------------------------------------------------

ANTHROPIC = "anthropic-version: 2023-06-01"


@pytest.mark.req("API-1")
@async_test()
async def test_models_in_pages_as_anthropic_s_sdk_turns_them() -> None:
    async with edge() as (_, address):
        pages, query = [], "?limit=1"
        while True:
            page = (await get(address, f"/v1/models{query}", ANTHROPIC)).json
            pages.append([row["id"] for row in page["data"]])
            if not page["has_more"]:
                break
            query = f"?limit=1&after_id={quote(page['last_id'], safe='')}"
        assert pages == [["org/big model"], ["small"]]
        back = (await get(address, "/v1/models?limit=1&before_id=small", ANTHROPIC)).json
        assert (back["first_id"], back["has_more"]) == ("org/big model", False)
        for query, param in (
            ("limit=0", "limit"),
            ("limit=1001", "limit"),
            ("limit=x", "limit"),
            ("after_id=none", "after_id"),
            ("after_id=small&before_id=small", "before_id"),
        ):
            answer = await get(address, f"/v1/models?{query}", ANTHROPIC)
            assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
            assert param in answer.json["error"]["message"]
            assert (await get(address, f"/v1/models?{query}")).status == 200, "OpenAI's list has no pages"


@pytest.mark.req("API-1", "API-4")
@async_test()
async def test_ids_with_slashes_as_they_are_or_escaped() -> None:
    async with edge() as (_, address):
        for path in ("org/big%20model", "org%2Fbig%20model", "org%2fbig%20%6Dodel"):
            assert (await get(address, f"/v1/models/{path}")).json["id"] == "org/big model"
            assert (await get(address, f"/v1/models/{path}", ANTHROPIC)).json["display_name"] == "org/big model"
        for path in ("org", "org/", "org/big", "%FF", "..%2Fsmall"):
            answer = await get(address, f"/v1/models/{path}")
            assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")


# ---- other endpoints ------------------------------------------------------------------------------------------------


@pytest.mark.req("API-1", "API-5")
@async_test()
async def test_any_other_post_needs_a_known_model() -> None:
    async with edge() as (_, address):
        answer = await ask(address, path="/v1/audio/speech")
        assert (answer.status, answer.json["error"]["code"]) == (503, "unavailable")  # and then there is no node
        client = await Client.connect(address)
        for body, status, code, param in (
            (chat("none"), 404, "model_not_found", None),
            (b"{}", 400, "invalid_request_error", "model"),
            (b"", 400, "invalid_request_error", None),
        ):
            client.send(post("/v1/rerank", body))
            answer = await client.answer()
            error = answer.json["error"]
            assert (answer.status, error["code"], error["param"]) == (status, code, param)
        client.send(post("/v1/rerank", b"{}", {"anthropic-version": "2023-06-01"}))
        assert (await client.answer()).json["type"] == "error"
        await client.close()


BAD_PATHS = [
    "/v1",
    "/v1/",
    "/v1/a/",
    "/v1//a",
    "/v1/a//b",
    "/v1/../admin",
    "/v1/a/../../sleep",
    "/v1/./a",
    "/v1/.a",
    "/v1/a/..",
    "/v1/..;/a",
    "/v1/%2e%2e/a",
    "/v1/a%2fb",
    "/v1/a%5cb",
    "/v1/a%00",
    "/v1/a%252fb",
    "/v1/a\\b",
    "/v1/a:b",
    "/v1/a;b",
    "/v1/a@b",
    "/V1/a",
    "/v2/a",
    "/v1/" + "a" * 65,
    "/v1" + "/a" * 9,
    "/v1/" + "/".join(["a" * 60] * 5),
    "/a",
    "//v1/a",
    "///v1/chat/completions",
    "//v1/chat/completions/",
    "//chat/completions",
    "/chat/completions/",
    "/v1/chat/completions//",
    "/v1/chat//completions",
    "/v1/v1/chat/completions",
    "/v1/chat/./completions",
    "/v1/x/../chat/completions",
    "/V1/chat/completions",
    "/v1/Chat/Completions",
    "/v1/chat%2Fcompletions",
    "/completions/chat",
]
#: What servers have for those who run them.
ADMIN_PATHS = [
    "load_lora_adapter",
    "unload_lora_adapter",
    "Load_LoRA_Adapter",
    "lOAD_lORA_aDAPTER",
    "realtime/client_secrets",
    "files",
    "batches",
    "fine_tuning/jobs",
    "lora/load",
    "model/load",
    "model/unload",
    "internal/model/load",
    "internal/stop-generation",
    "backend/shutdown",
    "template/switch",
    "sampling/override/switch",
    "engines/llama/install",
    "load",
    "pull",
    "delete",
    "sleep",
    "wake_up",
    "collective_rpc",
    "reset_prefix_cache",
    "update_weights_from_disk",
    "startProfile",
    "slots/0",
    "props",
    "lora-adapters",
    "model_registrations/llm",
    "cluster/auth",
    "admin/anything",
    "configure_logging",
]


@pytest.mark.req("API-1")
@async_test()
async def test_what_administers_a_model_server_is_not_there_nor_is_a_path_that_could_be_read_as_another() -> None:
    async with edge() as (_, address):
        client = await Client.connect(address)
        for path in [*BAD_PATHS, *(f"/v1/{path}" for path in ADMIN_PATHS)]:
            client.send(post(path, chat("small")))
            answer = await client.answer()
            assert (answer.status, answer.json["error"]["code"]) == (404, "not_found"), path
        for path in ("/v1/models", "/v1/models/small", "/v1/models/small/load"):
            client.send(post(path, chat("small")))
            answer = await client.answer()
            assert (answer.status, answer.get("allow")) == (405, READ)
        await client.close()


@pytest.mark.req("API-1", "API-6b")
@async_test()
async def test_the_endpoints_that_people_use_are_there_in_four_spellings() -> None:
    async with edge() as (_, address):
        client = await Client.connect(address)
        for path in (
            *("audio/transcriptions", "audio/translations", "audio/speech", "images/generations", "images/edits"),
            *("images/variations", "moderations", "rerank", "score", "classify", "pooling", "tokenize", "detokenize"),
            *("chat/completions", "completions", "responses", "embeddings", "messages", "messages/count_tokens"),
        ):
            for spelled in (f"/v1/{path}", f"//v1/{path}", f"/v1/{path}/", f"/{path}"):
                client.send(post(spelled, chat("small")))
                answer = await client.answer()
                error = answer.json["error"]
                assert (answer.status, "type" in answer.json) == (503, path.startswith("messages")), spelled
                assert error.get("code", "unavailable") == "unavailable"
        await client.close()
        for path in ("/v1/models", "//v1/models", "/v1/models/", "/models"):
            assert [model["id"] for model in (await get(address, path)).json["data"]] != []
        for path in ("//v1/models/small", "/models/small", "/v1/models/small/"):
            assert (await get(address, path)).status == 404, "an id is what it is"


@pytest.mark.req("API-6b")
@async_test()
async def test_an_owner_lets_more_paths_through_exactly_as_they_are_written() -> None:
    async with edge(more_paths=("/v1/ocr", "/v1/load_lora_adapter")) as (_, address):
        client = await Client.connect(address)
        for path, status in (
            ("/v1/ocr", 503),
            ("/v1/load_lora_adapter", 503),
            *((path.decode(), 404) for path in spellings(b"/v1/ocr")),
            ("/v1/OCR", 404),
            ("/v1/ocr/x", 404),
            ("/v1/unload_lora_adapter", 404),
        ):
            client.send(post(path, chat("small")))
            assert (await client.answer()).status == status, path
        await client.close()
        assert "/v1/ocr" in (await get(address, "/openapi.json")).json["paths"]


@pytest.mark.req("API-6b", "API-5")
@async_test()
async def test_an_unknown_path_says_what_to_set() -> None:
    async with edge() as (_, address):
        client = await Client.connect(address)
        for path, told in (
            ("/v1/v1/chat/completions", "twice"),
            ("/v1/ocr", "http.more_paths"),
            ("/v2/x", "base URL"),
        ):
            client.send(post(path, chat("small")))
            answer = await client.answer()
            assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")
            assert told in answer.json["error"]["message"]
        for path in ("/api/chat", "/api/tags", "/api/"):
            client.send(post(path, chat("small")))
            answer = await client.answer()
            assert (answer.status, set(answer.json)) == (404, {"error"})
            assert "/v1" in answer.json["error"], "Ollama's own form: the error is a text"
        await client.close()
        answer = await get(address, "/api/tags")
        assert (answer.status, isinstance(answer.json["error"], str)) == (404, True)


# ---- other origins --------------------------------------------------------------------------------------------------

APP = "https://app.example.org"


def cors(answer: Answer) -> dict[str, str]:
    return {
        name.removeprefix("access-control-"): value
        for name, value in answer.headers
        if name.startswith("access-control-")
    }


def preflight(origin: str, *more: str) -> tuple[str, ...]:
    return (f"Origin: {origin}", "Access-Control-Request-Method: POST", *more)


@pytest.mark.req("API-1")
@async_test()
async def test_a_listed_origin_is_answered_before_its_key_is_asked_for_and_reads_everything() -> None:
    async with edge(**KEYS, cors_origins=[APP, "http://localhost:3000"]) as (_, address):
        wanted = "Access-Control-Request-Headers: authorization, x-stainless-lang,anthropic-version"
        answer = await get(address, "/v1/chat/completions", *preflight(APP, wanted), method="OPTIONS")
        assert (answer.status, answer.body, answer.get("allow")) == (204, b"", WRITE)
        told = cors(answer)
        assert told.pop("expose-headers").startswith("x-request-id, x-iop-provider, ")
        assert told == {
            "allow-origin": APP,
            "allow-methods": WRITE,
            "allow-headers": wanted.partition(": ")[2],
            "max-age": "3600",
        }
        assert ", ".join(answer.all("vary")) == "origin, access-control-request-method, access-control-request-headers"
        for answer in (
            await ask(address, f"Origin: {APP}"),  # 401
            await ask(address, f"Origin: {APP}", KEYED),  # 503
            await get(address, "/v1/models", f"Origin: {APP}", KEYED),
            await get(address, "/v1/models", f"Origin: {APP}", KEYED, method="HEAD"),
            await get(address, "/v1/none", f"Origin: {APP}", KEYED),
            await get(address, "/readyz", f"Origin: {APP}"),
        ):
            assert (cors(answer)["allow-origin"], answer.get("vary")) == (APP, "origin")
            assert "retry-after" in cors(answer)["expose-headers"]
            assert "allow-credentials" not in cors(answer)


@pytest.mark.req("API-1")
@async_test()
async def test_other_origins_and_requests_without_one_get_no_cors_fields() -> None:
    async with edge(**KEYS, cors_origins=[APP]) as (_, address):
        for origin in ("https://evil.example", APP.replace("https", "http"), APP + ":444", APP.upper(), "null", "*"):
            answer = await get(address, "/v1/models", f"Origin: {origin}", KEYED)
            assert (answer.status, cors(answer), answer.all("vary")) == (200, {}, ["origin"])
            answer = await get(address, "/v1/models", *preflight(origin), method="OPTIONS")
            assert (answer.status, cors(answer), answer.get("allow")) == (204, {}, READ)
        plain = [await get(address, path, KEYED) for path in ("/v1/models", "/healthz", "/none")]
        assert [(cors(answer), answer.all("vary")) for answer in plain] == [({}, ["origin"])] * 3  # for caches
        twice = await get(address, "/v1/models", "Origin: https://evil.example", f"Origin: {APP}", KEYED)
        assert cors(twice) == {}


@pytest.mark.req("API-1")
@async_test()
async def test_every_origin() -> None:
    async with edge(**KEYS, cors_origins=["*"]) as (_, address):
        for origin in (APP, "null"):
            answer = await get(address, "/v1/models", f"Origin: {origin}", KEYED)
            assert (cors(answer)["allow-origin"], answer.get("vary")) == ("*", None)
            assert (await get(address, "/v1/models", KEYED)).get("vary") is None
            answer = await get(address, "/v1/messages", *preflight(origin), method="OPTIONS")
            assert (cors(answer)["allow-origin"], cors(answer)["allow-methods"]) == ("*", WRITE)
        for wanted in ("a b", "a,", "x" * 2049, "é"):
            answer = await get(
                address,
                "/v1/messages",
                *preflight(APP, f"Access-Control-Request-Headers: {wanted}"),
                method="OPTIONS",
            )
            assert (answer.status, "allow-headers" in cors(answer)) == (204, False)


@pytest.mark.req("API-4", "API-1")
@async_test()
async def test_without_keys_only_named_origins_come_in_and_the_host_stays_a_loopback_name() -> None:
    async with edge(cors_origins=[APP]) as (_, address):
        assert (await ask(address, f"Origin: {APP}")).status == 503  # past the door, and then there is no node
        for path in ("/v1/models", "/v1/chat/completions"):
            assert (await get(address, path, *preflight(APP), method="OPTIONS")).status == 204
            answer = await get(address, path, *preflight("https://evil.example"), method="OPTIONS")
            assert (answer.status, cors(answer)) == (403, {})
        client = await Client.connect(address)
        client.send(post("/v1/chat/completions", chat("small"), {"Origin": APP}, host="evil.example"))
        answer = await client.answer()
        assert (answer.status, cors(answer)["allow-origin"]) == (403, APP)
        await client.close()
    async with edge(cors_origins=["*"]) as (_, address):
        assert (await ask(address, f"Origin: {APP}")).status == 403
        assert (await ask(address, "Origin: http://localhost:3000")).status == 503


@pytest.mark.req("CONF-2")
@async_test()
async def test_origins_change_with_the_file() -> None:
    async with edge(**KEYS) as (one, address):
        assert cors(await get(address, "/readyz", f"Origin: {APP}")) == {}
        http = one.config.http.model_copy(update={"cors_origins": (APP,)})
        assert one.reload(one.config.model_copy(update={"http": http})).change.changed == ("http.cors_origins",)
        assert cors(await get(address, "/readyz", f"Origin: {APP}"))["allow-origin"] == APP


@pytest.mark.req("API-1", "API-6")
@async_test()
async def test_an_origin_reads_that_its_request_came_too_slowly() -> None:
    async with edge(cors_origins=[APP], body_timeout_sec=0.1) as (_, address):
        client = await Client.connect(address)
        client.send(post("/v1/chat/completions", chat("small"), {"Origin": APP})[:-1])
        answer = await client.answer()
        assert (answer.status, cors(answer)["allow-origin"]) == (408, APP)
        await client.close()


# ---- the document ---------------------------------------------------------------------------------------------------


def walk(node: Any) -> Any:
    yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(child)


def sound(document: Any) -> None:
    """What OpenAPI 3.1 asks of the parts that are used."""
    assert document["openapi"] == "3.1.0"
    assert {"title", "version"} <= set(document["info"])
    seen = set()
    for path, item in document["paths"].items():
        assert path.startswith("/")
        assert set(item) <= {"get", "head", "post", "parameters"}
        declared = item.get("parameters", [])
        for method, operation in item.items():
            if method == "parameters":
                continue
            assert operation["responses"]
            seen.add(operation.get("operationId"))
            for code, response in operation["responses"].items():
                assert code == "default" or (code.isdigit() and len(code) == 3)
                assert response["description"]
            for requirement in operation["security"]:
                assert set(requirement) <= set(document["components"]["securitySchemes"])
            if "requestBody" in operation:
                assert operation["requestBody"]["content"]
            names = [p["name"] for p in [*declared, *operation.get("parameters", [])] if p["in"] == "path"]
            assert names == [part.strip("{}") for part in path.split("/") if part.startswith("{")]
    assert len(seen) > len(ROUTES)
    for node in walk(document):
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            at = document
            for key in node["$ref"].removeprefix("#/").split("/"):
                at = at[key]


@pytest.mark.req("API-1")
@async_test()
async def test_the_document_says_what_the_edge_does_and_the_edge_does_what_it_says() -> None:
    async with edge(**KEYS) as (_, address):
        assert (await get(address, "/openapi.json")).status == 401, "as /v1/models"
        answer = await get(address, "/openapi.json", KEYED)
        assert answer.get("content-type") == "application/json"
        document = answer.json
        sound(document)
        client = await Client.connect(address)
        for path, item in document["paths"].items():
            real = path.replace("{id}", "small")
            for method, operation in item.items():
                if method == "parameters":
                    continue
                if method == "post":
                    client.send(post(real, chat("small"), {"Authorization": f"Bearer {KEY}"}))
                    assert (await client.answer()).status == 503
                else:
                    answer = await get(address, real, KEYED, method=method.upper())
                    assert answer.status == 200
                bare = await get(address, real, method=method.upper())
                assert (bare.status == 401) is bool(operation["security"]), real
        await client.close()
    items = document["paths"].items()
    documented = {(path, method) for path, item in items for method in item if method != "parameters"}
    pages = {(path.decode(), method) for path in [*PAGES, b"/v1/models/{id}"] for method in ("get", "head")}
    assert documented == pages | {(path.decode(), "post") for path in ROUTES | OTHERS}
    assert json.dumps(document).isascii()


@pytest.mark.req("API-6", "OBS-1")
@async_test()
async def test_what_never_became_a_request_is_counted_by_what_was_wrong_with_it() -> None:
    async with edge(max_header_bytes=1024) as (one, address):
        assert (await get(address, "/", f"X: {'x' * 2000}")).status == 431
        assert (await get(address, "/", "Host: another")).status == 400
        counted = {labels: int(count) for labels, count in one.metrics.requests.read()}
        assert counted == {
            ("other", "head_too_large", "", "", "", ""): 1,
            ("other", "invalid_request_error", "", "", "", ""): 1,
        }


@pytest.mark.req("API-1", "API-11")
def test_pages_may_read_what_the_document_says_of_answers_and_no_more() -> None:
    (line,) = [line for line in Cors(["*"]).fields(b"http://a").split(b"\r\n") if b"expose-headers" in line]
    documented = json.loads(openapi())["components"]["headers"]
    assert sorted(line.decode().partition(": ")[2].split(", ")) == sorted(documented)
    assert {name for name in documented if name.startswith("x-ratelimit-")} == set(RATES)
