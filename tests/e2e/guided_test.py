"""Structured output on the real model: what comes out matches, judged by Python's own json, re and
jsonschema. HARD-CASES O01, O02, O03, O05, O07."""
import json
import re
import tempfile
import unittest

import grpc
import jsonschema

from daemon import Daemon, greedy, pb, run

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}},
    "required": ["name", "age", "tags"], "additionalProperties": False}


def guided(max_tokens=200, n=1, temperature=0.9, seed=0, prompt="Answer:", **guide):
    return pb.GenerateRequest(
        text=prompt, guided=pb.GuidedDecoding(**guide),
        sampling=pb.SamplingParams(temperature=temperature, seed=seed, n=n),
        stopping=pb.StoppingOptions(max_tokens=max_tokens),
        response=pb.ResponseOptions(token_ids=True))


class GuidedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.daemon.__exit__()

    def outputs(self, request):
        """Texts and whether each is complete, by its finish reason."""
        result = self.daemon.generation.GenerateUnary(request)
        return [(o.text, o.finished.reason == pb.FINISH_REASON_STOP) for o in result.outputs]

    def test_json_schema(self):
        for n, temperature in [(1, 0), (8, 1.0)]:
            found = self.outputs(guided(json_schema=json.dumps(PERSON), n=n,
                                        temperature=temperature))
            self.assertTrue(any(complete for _, complete in found))
            for text, complete in found:
                if complete:
                    jsonschema.validate(json.loads(text), PERSON)

    def test_json_options(self):
        request = guided(json_schema=json.dumps(PERSON), n=4)
        request.guided.json.any_whitespace = False
        request.guided.json.item_separator = ","
        request.guided.json.key_separator = ":"
        complete = [text for text, complete in self.outputs(request) if complete]
        self.assertGreater(len(complete), 0)
        for text in complete:
            self.assertEqual(json.dumps(json.loads(text), separators=(",", ":"),
                                        ensure_ascii=False), text)

    def test_json_object_and_structural_tag(self):
        tag = {"type": "structural_tag", "format": {
            "type": "tag", "begin": "<call>", "end": "</call>",
            "content": {"type": "json_schema", "json_schema": PERSON}}}
        for text, complete in self.outputs(guided(structural_tag=json.dumps(tag), n=2)):
            self.assertTrue(text.startswith("<call>"))
            if complete:
                inner = re.fullmatch(r"<call>(.*)</call>", text, re.DOTALL)[1]
                jsonschema.validate(json.loads(inner), PERSON)
        found = self.outputs(guided(json_object=True, n=8))
        for text, complete in found:
            self.assertTrue(text.lstrip().startswith("{"))
            if complete:
                self.assertIsInstance(json.loads(text), dict)

    def test_regex_choice_and_grammar(self):
        for guide, matches in [
                ({"regex": r"[A-Z][a-z]{2,8} (19|20)\d\d"},
                 lambda t: re.fullmatch(r"[A-Z][a-z]{2,8} (19|20)\d\d", t)),
                ({"choice": pb.Choices(texts=["yes", "no", "perhaps"])},
                 lambda t: t in ("yes", "no", "perhaps")),
                ({"grammar": 'root ::= "<" [0-9]{1,3} ("," [0-9]{1,3}){2} ">"'},
                 lambda t: re.fullmatch(r"<\d{1,3},\d{1,3},\d{1,3}>", t))]:
            found = self.outputs(guided(n=8, **guide))
            self.assertTrue(any(complete for _, complete in found), guide)
            for text, complete in found:
                self.assertTrue(not complete or matches(text), text)
        self.assertTrue(all(complete for _, complete in self.outputs(
            guided(n=8, choice=pb.Choices(texts=["yes", "no", "perhaps"])))))

    def test_without_end_tokens_the_grammar_ends_the_output(self):
        request = guided(regex="[ab]{5}", n=4)
        request.stopping.ignore_eos = True
        for text, complete in self.outputs(request):
            self.assertTrue(complete)
            self.assertRegex(text, "^[ab]{5}$")

    def test_beams_keep_to_the_grammar(self):
        request = pb.GenerateRequest(
            text="The year was", guided=pb.GuidedDecoding(regex=r" (19|20)\d\d"),
            beam=pb.BeamParams(beam_width=4, num_return_sequences=4),
            stopping=pb.StoppingOptions(max_tokens=20))
        result = self.daemon.generation.GenerateUnary(request)
        texts = [o.text for o in result.outputs]
        scores = [o.finished.score for o in result.outputs]
        self.assertEqual(len(set(texts)), 4)
        self.assertEqual(scores, sorted(scores, reverse=True))
        for text in texts:
            self.assertRegex(text, r"^ (19|20)\d\d$")

    def test_guesses_change_no_bit(self):
        def ask(method):
            request = guided(json_schema=json.dumps(PERSON), temperature=0.7, seed=5)
            request.spec.method = method
            result = self.daemon.generation.GenerateUnary(request)
            return list(result.outputs[0].token_ids), result.usage
        plain, _ = ask(pb.SPECULATION_METHOD_NONE)
        guessed, usage = ask(pb.SPECULATION_METHOD_NGRAM)
        self.assertEqual(guessed, plain)
        self.assertGreaterEqual(usage.draft_tokens, usage.accepted_draft_tokens)

    def test_o01_o02_o03_faults_are_told_and_others_run_on(self):
        running = self.daemon.generation.Generate(greedy([1, 2, 3], 4000))
        next(running)
        nested = {keyword: '{"%s":' % keyword for keyword in ["items", "not"]}
        bad = []
        for depth in [100, 1000, 10000]:
            bad += [{"json_schema": '{"items":' * depth + "{}" + "}" * depth},
                    {"json_schema": '{"properties":{"a":' * depth + "{}" + "}}" * depth},
                    {"json_schema": '{"anyOf":[' * depth + "{}" + "]}" * depth},
                    {"json_schema": '{"allOf":[' * depth + "{}" + "]}" * depth},
                    {"json_schema": nested["not"] * depth + "{}" + "}" * depth},
                    {"regex": "(" * depth + "a" + ")" * depth}]
        bad += [{"regex": text} for text in [
            "(" * 60000 + "a" + ")" * 60000, "*a", "(?<=x)+", "a{2,1}", "a{1000000000}", "[z-a]",
            "("]]
        for depth in [1000, 10000, 1000000]:
            bad.append({"grammar": "root ::= " + "(" * depth + '"a"' + ")" * depth})
        bad += [{"grammar": text} for text in [
            'root ::= root "a"', "root ::= a\na ::= b\nb ::= a", 'start ::= "a"', "a" * (10 << 20)]]
        bad += [{"json_schema": json.dumps(schema)} for schema in [
            {"type": "stirng"}, {"$ref": "#/nope"}, {"$ref": "#"}, {"enum": []},
            {"type": "string", "minLength": 5, "maxLength": 2},
            {"type": "object", "properties": {}, "required": ["x"],
             "additionalProperties": False}]]
        for guide in bad:
            (field, text), = guide.items()
            with self.assertRaises(grpc.RpcError, msg=text[:60]) as error:
                self.daemon.generation.GenerateUnary(guided(**guide))
            self.assertEqual(error.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, text[:60])
            self.assertIn("guided." + field, error.exception.details(), text[:60])
            self.assertLess(len(error.exception.details()), 2000, text[:60])
        # A recursive schema that can end is no fault.
        recursive = {"type": "object", "properties": {"next": {"$ref": "#"}},
                     "additionalProperties": False}
        for text, complete in self.outputs(guided(json_schema=json.dumps(recursive), n=4)):
            if complete:
                jsonschema.validate(json.loads(text), recursive)
        self.assertTrue(next(running).HasField("delta"))  # still there
        running.cancel()
        self.assertIsNone(self.daemon.process.poll())

    def test_bans_that_leave_no_token_are_named(self):
        def ids_of(text):
            return list(self.daemon.generation.Tokenize(
                pb.TokenizeRequest(text=text, add_special_tokens=False)).token_ids)

        digits = guided(max_tokens=8, regex="[0-9]+")
        digits.sampling.allowed_token_ids.extend(ids_of("a"))
        no_five = guided(max_tokens=8, regex="5")
        no_five.sampling.bad_words.add().ids.extend(ids_of("5"))
        beams = guided(max_tokens=8, temperature=0, regex="[0-9]+")
        beams.sampling.ClearField("seed")
        beams.sampling.allowed_token_ids.extend(ids_of("a"))
        beams.beam.beam_width = 2
        for request, names in [(digits, ["allowed_token_ids", "guided", "after 0 tokens"]),
                               (no_five, ["bad_words", "guided", "after 0 tokens"]),
                               (beams, ["allowed_token_ids", "guided"])]:
            with self.assertRaises(grpc.RpcError) as error:
                self.daemon.generation.GenerateUnary(request)
            self.assertEqual(error.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
            for name in names:
                self.assertIn(name, error.exception.details())
        # What is left is enough.
        digits.sampling.allowed_token_ids.extend(ids_of("7"))
        self.assertRegex(self.outputs(digits)[0][0], "^7+$")

    def test_o05_free_values_parse_when_they_end(self):
        ended = cut = 0
        for schema in [{}, {"type": "number"}, {"type": "array"}]:
            for seed in range(4):
                request = guided(json_schema=json.dumps(schema), n=8, seed=seed, temperature=1.0,
                                 max_tokens=60, prompt="A list of numbers: ")
                for text, complete in self.outputs(request):
                    ended += complete
                    cut += not complete
                    self.assertIsNone(re.search(r"\s{17}", text))  # bounded
                    if complete:
                        jsonschema.validate(json.loads(text), schema)
        self.assertGreater(ended, 20)

    def test_o07_characters_byte_by_byte(self):
        grammar = 'root ::= "\\u4f60" [\\u00e0-\\u00ff]{2,5} "\\U0001F600"'
        found = self.outputs(guided(grammar=grammar, n=8, temperature=1.0))
        for text, complete in found:
            self.assertTrue(complete)
            self.assertRegex(text, "^\u4f60[\u00e0-\u00ff]{2,5}\U0001F600$")

    def test_command_line(self):
        port = ["--port", str(self.daemon.port), "--temperature", "0"]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as schema, \
                tempfile.NamedTemporaryFile("w") as grammar:
            json.dump(PERSON, schema)
            schema.flush()
            grammar.write('root ::= "<" [0-9]{3} ">"')
            grammar.flush()
            found = run("generate", *port, "--json-schema", schema.name, "Who are you?")
            self.assertEqual(found.returncode, 0, found.stderr)
            jsonschema.validate(json.loads(found.stdout), PERSON)
            found = run("generate", *port, "--grammar", grammar.name, "A number, please.")
            self.assertRegex(found.stdout, r"^<\d{3}>\n$")
        found = run("generate", *port, "--regex", "[0-9]{2}", "A number, please.")
        self.assertRegex(found.stdout, r"^\d\d\n$")
        found = run("generate", *port, "--choice", "hot", "--choice", "cold", "Is ice hot or cold?")
        self.assertIn(found.stdout, ("hot\n", "cold\n"))
        bad = run("generate", *port, "--regex", "(", "x")
        self.assertEqual(bad.returncode, 1)
        self.assertIn("guided.regex", bad.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
