"""/metrics of the real daemon: as promtool and a real Prometheus read it, while requests run and at
rest; and what HTTP shares with gRPC: keys, limits, load headers."""
import http.client
import json
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import unittest
import urllib.parse

from daemon import Daemon, END_S, eventually, greedy, run


def ask(port, method, path, body=None, headers=None):
    """(status, headers, text)"""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=END_S)
    try:
        connection.request(method, path, body and json.dumps(body),
                           {"content-type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def samples(text):
    """{"name{labels}": value}"""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            assert series not in found, series
            found[series] = float(value)
    return found


def total(page, name):
    return sum(value for series, value in page.items() if series.split("{")[0] == name)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon("--max-model-len", "1024", "--max-num-seqs", "8",
                            "--served-model-name", 'with "quotes" and \\')

    @classmethod
    def tearDownClass(cls):
        cls.daemon.__exit__()

    def page(self):
        status, headers, text = ask(self.daemon.http_port, "GET", "/metrics")
        self.assertEqual(status, 200)
        self.assertEqual(headers["content-type"], "text/plain; version=0.0.4; charset=utf-8")
        return text

    def generate(self, max_tokens=8, ids=(1, 2, 3)):
        return self.daemon.generation.GenerateUnary(greedy(list(ids), max_tokens))

    def test_promtool(self):
        self.generate()
        checked = subprocess.run(["promtool", "check", "metrics"], input=self.page(), text=True,
                                 capture_output=True, timeout=END_S)
        self.assertIn(checked.returncode, (0, 3), checked.stderr)  # 3: style only
        # What vLLM's own names bring with them, and nothing else.
        for line in checked.stderr.splitlines():
            self.assertRegex(line, r"metric names should not contain ':'|"
                                   r"^vllm:(iteration_tokens|.*)_total non-(counter|histogram) .*|"
                                   r'should not have "_(info|total)" suffix')
        broken = subprocess.run(["promtool", "check", "metrics"], input="a{ 1\n", text=True,
                                capture_output=True, timeout=END_S)
        self.assertEqual(broken.returncode, 1)  # it does look

    def test_a_real_prometheus_scrapes(self):
        port = free_port()
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "prometheus.yml"
            config.write_text(
                "global: {scrape_interval: 1s}\n"
                "scrape_configs:\n"
                "- job_name: quire\n"
                f"  static_configs: [{{targets: ['127.0.0.1:{self.daemon.http_port}']}}]\n")
            log = open(pathlib.Path(folder) / "log", "w")
            process = subprocess.Popen(
                ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
            try:
                def query(text):
                    try:
                        status, _, body = ask(port, "GET", "/api/v1/query?query=" +
                                              urllib.parse.quote(text))
                    except OSError:
                        status = 0
                    if status != 200:  # not started yet
                        return []
                    return [(r["metric"], float(r["value"][1]))
                            for r in json.loads(body)["data"]["result"]]
                self.assertTrue(eventually(lambda: [v for _, v in query("up")] == [1]))
                before = samples(self.page())
                tokens = sum(self.generate(n).usage.completion_tokens for n in (3, 5, 9))
                self.assertEqual(tokens, 17)
                wanted = total(before, "vllm:generation_tokens_total") + tokens
                self.assertTrue(eventually(
                    lambda: [v for _, v in query("vllm:generation_tokens_total")] == [wanted]))
                [(labels, _)] = query("vllm:num_requests_running")
                self.assertEqual(labels["model_name"], 'with "quotes" and \\')
                self.assertEqual(labels["engine"], "0")
                [(labels, value)] = query("vllm:cache_config_info")
                self.assertEqual((labels["block_size"], value), ("16", 1))
                self.assertEqual(int(labels["num_gpu_blocks"]), self.daemon.blocks().total_blocks)
                [(_, quantile)] = query(
                    "histogram_quantile(0.5, vllm:time_to_first_token_seconds_bucket)")
                self.assertGreater(quantile, 0)
            finally:
                process.terminate()
                process.wait(END_S)
                log.close()

    def test_names_that_routers_and_dashboards_ask_for(self):
        self.generate()
        page = samples(self.page())
        names = {series.split("{")[0] for series in page}
        for name in ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
                     "cache_config_info", "prefix_cache_queries_total", "prefix_cache_hits_total",
                     "num_preemptions_total", "prompt_tokens_total", "generation_tokens_total",
                     "request_success_total", "time_to_first_token_seconds_bucket",
                     "inter_token_latency_seconds_bucket", "e2e_request_latency_seconds_bucket",
                     "request_queue_time_seconds_bucket", "request_prefill_time_seconds_bucket",
                     "request_decode_time_seconds_bucket", "request_inference_time_seconds_bucket",
                     "request_prompt_tokens_bucket", "request_generation_tokens_bucket",
                     "iteration_tokens_total_bucket", "request_params_n_bucket",
                     "request_params_max_tokens_bucket", "spec_decode_num_drafts_total",
                     "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
                     "spec_decode_num_accepted_tokens_per_pos_total", "admission_rejections_total",
                     "prompt_tokens_by_source_total", "num_requests_waiting_by_reason"]:
            self.assertIn("vllm:" + name, names)
        for name in ["quire:kv_blocks", "quire:kv_evictions_total", "grpc_server_handled_total",
                     "http_requests_total", "process_cpu_seconds_total",
                     "quire:memory_profile_bytes", "quire:scheduler_step_seconds_bucket"]:
            self.assertIn(name, names)
        bounds = [float(re.search(r'le="([^"]*)"', series)[1]) for series in page
                  if series.startswith("vllm:e2e_request_latency_seconds_bucket")]
        self.assertEqual(sorted(bounds)[-2], 7680)  # as vLLM's

    def test_counters_never_fall_while_requests_come_and_go(self):
        stop = threading.Event()
        falls = []

        def scrape():
            before = {}
            while not stop.is_set():
                now = samples(self.page())
                falls.extend(s for s in before
                             if re.search(r"_(total|count|sum|bucket)($|{)", s)
                             and now.get(s, -1) < before[s])
                before = now
        scrapers = [threading.Thread(target=scrape) for _ in range(4)]
        for thread in scrapers:
            thread.start()
        calls = [self.daemon.generation.GenerateUnary.future(
            greedy([i + 1, i + 2, 3] * 40, 40, seed=i)) for i in range(12)]
        for call in calls[::3]:
            call.cancel()
        for call in calls:
            try:
                call.result()
            except Exception:  # cancelled
                pass
        stop.set()
        for thread in scrapers:
            thread.join()
        self.assertEqual(falls, [])
        self.assertTrue(eventually(
            lambda: total(samples(self.page()), "vllm:num_requests_running") == 0))
        page = samples(self.page())
        self.assertEqual(total(page, "vllm:request_success_total"),
                         total(page, "quire:requests_started_total"))
        self.assertEqual(total(page, "vllm:prompt_tokens_by_source_total"),
                         total(page, "vllm:prompt_tokens_total"))

    def test_http_requests_are_counted_by_route(self):
        def count(page, **labels):
            wanted = ",".join(f'{k}="{v}"' for k, v in labels.items())
            return page.get(f"http_requests_total{{{wanted}}}", 0)
        route = {"method": "POST", "handler": "/v1/completions"}
        before = samples(self.page())
        for body, status in [({"prompt": "one two", "max_tokens": 2}, 200), ({"prompt": 7}, 400)]:
            self.assertEqual(ask(self.daemon.http_port, "POST", "/v1/completions", body)[0], status)
        for path in ["/no/such/path", "/another?x=y"]:
            self.assertEqual(ask(self.daemon.http_port, "GET", path)[0], 404)

        def counted():
            page = samples(self.page())
            return [count(page, **route, status="2xx") - count(before, **route, status="2xx"),
                    count(page, **route, status="4xx") - count(before, **route, status="4xx"),
                    count(page, method="other", handler="other", status="4xx") -
                    count(before, method="other", handler="other", status="4xx")]
        self.assertTrue(eventually(lambda: counted() == [1, 1, 2]), counted())

    def test_load_header(self):
        path = "/v1/models"
        _, headers, _ = ask(self.daemon.http_port, "GET", path)
        self.assertNotIn("endpoint-load-metrics", headers)
        _, headers, _ = ask(self.daemon.http_port, "GET", path,
                            headers={"endpoint-load-metrics-format": "JSON"})
        kind, _, value = headers["endpoint-load-metrics"].partition(" ")
        self.assertEqual(kind, "JSON")
        self.assertEqual(set(json.loads(value)["named_metrics"]),
                         {"kv_cache_usage_perc", "num_requests_waiting"})
        _, headers, _ = ask(self.daemon.http_port, "GET", path,
                            headers={"endpoint-load-metrics-format": "text"})
        self.assertRegex(headers["endpoint-load-metrics"],
                         r"^TEXT named_metrics\.kv_cache_usage_perc=[0-9.e-]+, "
                         r"named_metrics\.num_requests_waiting=\d+$")


class NamesTest(unittest.TestCase):
    def test_own_names_and_buckets_by_option(self):
        with Daemon("--max-model-len", "256", "--no-vllm-metric-names", "--histogram-buckets",
                    "time_to_first_token_seconds=0.125,100") as daemon:
            daemon.generation.GenerateUnary(greedy([1, 2], 2))
            _, _, text = ask(daemon.http_port, "GET", "/metrics")
            self.assertNotIn("vllm:", text)
            bounds = re.findall(r'quire:time_to_first_token_seconds_bucket{.*le="([^"]*)"}', text)
            self.assertEqual(bounds, ["0.125", "100", "+Inf"])
        wrong = run("serve", "--model", "m", "--histogram-buckets", "ttft=1", "--check-config")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("histogram_buckets: ttft is not a histogram", wrong.stderr)


class HttpKeysTest(unittest.TestCase):
    def test_http_asks_for_the_same_keys(self):
        made = {name: run("key", name, *args) for name, args in
                {"alice": [], "slow": ["--requests-per-minute", "1"]}.items()}
        key = {name: m.stderr.strip() for name, m in made.items()}
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("".join(m.stdout for m in made.values()))
            file.flush()
            with Daemon("--max-model-len", "256", "--api-key-file", file.name) as daemon:
                def status(method, path, body=None, **headers):
                    return ask(daemon.http_port, method, path, body, {
                        name.replace("_", "-"): value for name, value in headers.items()})[0]
                body = {"prompt": "one two", "max_tokens": 1}
                for path in ["/health", "/ready", "/metrics", "/version", "/load", "/ping"]:
                    self.assertEqual(status("GET", path), 200, path)
                for headers in [{}, {"authorization": "Bearer x"}, {"x_api_key": "x"},
                                {"authorization": key["alice"]}]:
                    self.assertEqual(status("GET", "/v1/models", **headers), 401)
                    self.assertEqual(status("POST", "/v1/completions", body, **headers), 401)
                    self.assertEqual(status("POST", "/tokenize", body, **headers), 401)
                bearer = f"Bearer {key['alice']}"
                self.assertEqual(status("GET", "/v1/models", authorization=bearer), 200)
                self.assertEqual(status("POST", "/v1/completions", body, authorization=bearer), 200)
                self.assertEqual(status("POST", "/v1/completions", body, x_api_key=key["slow"]), 200)
                code, headers, text = ask(daemon.http_port, "POST", "/v1/completions", body,
                                          {"x-api-key": key["slow"]})
                self.assertEqual(code, 429)
                self.assertTrue(0 < int(headers["retry-after"]) <= 60, headers)
                self.assertTrue(0 < int(headers["retry-after-ms"]) <= 60_000, headers)
                self.assertIn("requests_per_minute=1", json.loads(text)["error"]["message"])
                page = samples(ask(daemon.http_port, "GET", "/metrics")[2])
                self.assertGreaterEqual(
                    page['quire:auth_failures_total{reason="unauthenticated"}'], 12)
                for name in key:
                    self.assertNotIn(key[name], daemon.read_log())


if __name__ == "__main__":
    unittest.main()
