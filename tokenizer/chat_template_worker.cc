#include "tokenizer/chat_template_worker.h"

namespace quire {

// Reads one JSON object a line from stdin, answers with one a line on stdout, ends with stdin.
//   start    -> {"ready": true, "jinja2": version} or {"ready": false, "message": why}
//   {"op": "compile", "template", "special", "now", "limits"} -> {"ok": true} or an error
//   {"op": "render", "messages", "tools", "documents", "kwargs", "add_generation_prompt",
//    "continue_final_message"} -> {"ok": true, "text"} or an error
// An error is {"ok": false, "kind", "message", "line"}. The set-up of the environment follows what
// transformers documents for chat templates: sandbox, trim_blocks, lstrip_blocks, loop controls, a
// `generation` block, tojson that escapes nothing, raise_exception, strftime_now.
const char kChatTemplateWorker[] = R"PY(
import json, os, sys


def send(answer):
    data = (json.dumps(answer, ensure_ascii=False) + "\n").encode("utf-8")
    while data:
        data = data[os.write(1, data):]


try:
    import datetime, resource, signal, textwrap
    import jinja2, jinja2.constants, jinja2.debug, jinja2.ext, jinja2.sandbox
    from jinja2.exceptions import TemplateError, TemplateSyntaxError
    from jinja2.nodes import CallBlock
except ImportError as e:
    send({"ready": False, "message": str(e)})
    sys.exit(0)


class Raised(TemplateError):
    """raise_exception() of a template."""


class TooLong(Exception):
    pass


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} marks what the assistant wrote; it renders as is."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def raise_exception(message):
    raise Raised(message)


state = {"now": None, "template": None, "special": {}, "limits": None}


def strftime_now(form):
    return (state["now"] or datetime.datetime.now()).strftime(form)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def limit(what, value):
    try:
        resource.setrlimit(getattr(resource, what), (value, value))
    except (ValueError, OSError):
        pass  # a harder limit is in force already


class CpuLimit:
    """SIGPROF ends the process even inside one long operation of the interpreter."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        signal.setitimer(signal.ITIMER_PROF, self.seconds)

    def __exit__(self, *args):
        signal.setitimer(signal.ITIMER_PROF, 0)


def compile_template(request):
    state["limits"] = limits = request["limits"]
    if request["now"]:
        state["now"] = datetime.datetime.strptime(request["now"], "%Y-%m-%d %H:%M:%S")
    state["special"] = request["special"]
    limit("RLIMIT_AS", limits["memory_bytes"])
    limit("RLIMIT_NOFILE", 3)
    limit("RLIMIT_FSIZE", 0)
    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_NPROC", 0)
    with CpuLimit(limits["compile_cpu_ms"] / 1000):
        state["template"] = environment().from_string(request["template"])
    return {"ok": True}


def cut_behind_final_message(text, messages):
    """The prompt ends where the last message ends, so that the model goes on with it."""
    final = messages[-1]["content"]
    if isinstance(final, (list, tuple)):
        texts = [part["text"] for part in final if "text" in part]
        if not texts:
            raise ValueError("continue_final_message: the final message has no text to continue")
        final = texts[-1]
    begin = text.rfind(final.strip())
    if begin < 0:
        raise ValueError("continue_final_message: the template does not show the final message")
    if text[begin:begin + len(final.lstrip())] == final:
        return text[:begin + len(final.lstrip())]
    return text[:begin + len(final.strip())]


def render(request):
    limits = state["limits"]
    messages = request["messages"]
    values = {"messages": messages, "tools": request["tools"], "documents": request["documents"],
              "add_generation_prompt": request["add_generation_prompt"],
              **state["special"], **request["kwargs"]}
    parts, size = [], 0
    with CpuLimit(limits["render_cpu_ms"] / 1000):
        for part in state["template"].generate(values):
            size += len(part)
            if size > limits["output_bytes"]:
                raise TooLong()
            parts.append(part)
        text = "".join(parts)
        if request["continue_final_message"]:
            text = cut_behind_final_message(text, messages)
        if len(text.encode("utf-8")) > limits["output_bytes"]:
            raise TooLong()
    return {"ok": True, "text": text}


def line_of(e):
    if isinstance(e, TemplateSyntaxError):
        return e.lineno
    line, tb = 0, e.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code.co_filename == "<template>":
            line = tb.tb_lineno
        tb = tb.tb_next
    return line


def failure(kind, e):
    message = str(e) or type(e).__name__
    if kind == "template":
        message = "%s: %s" % (type(e).__name__, message)
    return {"ok": False, "kind": kind, "line": line_of(e), "message":
            message[:4000].encode("utf-8", "replace").decode("utf-8")}


def answer(line):
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as e:
        return failure("request", e)
    try:
        return {"compile": compile_template, "render": render}[request["op"]](request)
    except Raised as e:
        return failure("raised", e)
    except (TooLong, MemoryError) as e:
        return failure("too_long" if isinstance(e, TooLong) else "memory", e)
    except Exception as e:
        return failure("template", e)


# Loads whatever is loaded on first use, before files cannot be opened any more.
datetime.datetime.now().strftime("%A %B %c %Z")
for text in ("{{ lipsum(1) }}{{ 'a b' | wordwrap(1) }}{{ x | pprint }}", "{{ x.y }}"):
    try:
        environment().from_string(text).render()
    except Exception as e:
        line_of(e)
send({"ready": True, "jinja2": jinja2.__version__})
for line in sys.stdin.buffer:
    send(answer(line))
)PY";

}  // namespace quire
