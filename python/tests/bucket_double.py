"""A store in memory that speaks as much of S3's protocol as the agent uses; it takes every
signature.
"""

import http.server
import itertools
import re
import threading
import urllib.parse
from xml.sax.saxutils import escape


class Store:
    """One bucket, `models`, and the server that serves it on a thread, with one more for each
    connection. The test reads the fields, sets `refuse`, and calls `close`; the handlers change
    `objects` and `uploads`, under `lock`, which a test need not hold when no job is under way.
    """

    def __init__(self):
        """Start the server on a thread, at a free port of this host."""
        self.objects = {}  # the bytes of each object, by key
        self.uploads = {}  # those under way, by id: the key, and the bytes of each part by number
        self.refuse = None  # the HTTP status with which every request is refused, None for none
        self._numbers, self.lock = itertools.count(), threading.RLock()
        handler = type("Handler", (_Handler,), {"store": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.env = {  # the variables that name this store to agents
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def close(self):
        """Stop the server, and wait for its thread, but not for those of connections."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def steps(self):
        """The numbers of the steps that have a manifest, and so a sealed checkpoint, the newest
        first.
        """
        return sorted(
            (
                int(k.split("step-")[1][:12])
                for k in self.objects
                if k.endswith("/shoal-manifest.json")
            ),
            reverse=True,
        )

    def new_upload_id(self):
        """A new id for an upload. The caller holds `lock`."""
        return f"u{next(self._numbers)}"


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers the requests of one connection from the store, on the thread of that connection.
    http.server calls the methods do_…; they hold the lock of the store while they call the others
    that send an answer. `store` is a field of the class, which Store.__init__ makes.
    """

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Print nothing to standard error, where http.server would print each request."""

    def _answer(self, status=200, body=b"", **headers):
        """Send an answer with this HTTP status and these headers, in whose names _ stands for -; a
        HEAD gets no body.
        """
        self.send_response(status)
        headers.setdefault("Content_Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status, code):
        """Answer with an error of S3's: the HTTP status, and S3's word for the error."""
        self._answer(
            status,
            f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode(),
            Content_Type="application/xml",
        )

    def _read_body(self):
        """Read the body of the request, and take it out of S3's signed chunks where it is in some.
        Blocks on the connection, and so without the lock.
        """
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.headers.get("X-Amz-Content-Sha256", "").startswith("STREAMING-"):
            return body
        whole, at = b"", 0
        while True:
            line = body.index(b"\r\n", at)
            size = int(body[at:line].split(b";")[0], 16)
            if not size:
                return whole
            whole += body[line + 2 : line + 2 + size]
            at = line + 4 + size

    def _serve(self):
        """Answer a request of any method."""
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        bucket, _, key = urllib.parse.unquote(url.path).lstrip("/").partition("/")
        body, store = self._read_body(), self.store
        with store.lock:
            if store.refuse:
                self._refuse(store.refuse, "AccessDenied")
            elif bucket != "models":
                self._refuse(404, "NoSuchBucket")
            elif not key:
                self._list(query)
            elif "uploads" in query or "uploadId" in query:
                self._upload(key, query, body)
            elif self.command == "PUT":
                store.objects[key] = body
                self._answer(ETag='"whole"')
            elif self.command == "DELETE":
                store.objects.pop(key, None)
                self._answer(204)
            elif key not in store.objects:
                self._refuse(404, "NoSuchKey")
            else:
                self._send_object(store.objects[key])

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _send_object(self, found):
        """Answer with an object, the bytes `found`, or with the range of it that is asked for."""
        dated = {"ETag": '"whole"', "Last_Modified": "Sun, 09 Sep 2001 01:46:40 GMT"}
        part = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if self.command == "HEAD":
            self._answer(Content_Length=str(len(found)), **dated)
        elif part:
            first, last = int(part[1]), int(part[2])
            self._answer(
                206,
                found[first : last + 1],
                Content_Range=f"bytes {first}-{last}/{len(found)}",
                **dated,
            )
        else:
            self._answer(200, found, **dated)

    def _list(self, query):
        """Answer with the keys, or the uploads, that begin with a prefix. `query` has the
        parameters of the request's address, as in `_upload`.
        """
        prefix = query.get("prefix", "")
        if "uploads" in query:
            found = "".join(
                f"<Upload><Key>{escape(k)}</Key><UploadId>{u}</UploadId></Upload>"
                for u, (k, _) in self.store.uploads.items()
                if k.startswith(prefix)
            )
            return self._send_xml("ListMultipartUploadsResult", found)
        keys = sorted(k for k in self.store.objects if k.startswith(prefix))
        line = (
            "<Contents><Key>{}</Key><Size>{}</Size>"
            "<LastModified>2001-09-09T01:46:40Z</LastModified><ETag>x</ETag></Contents>"
        )
        return self._send_xml(
            "ListBucketResult",
            "<Name>models</Name>"
            + "".join(line.format(escape(k), len(self.store.objects[k])) for k in keys),
        )

    def _upload(self, key, query, body):
        """Begin an upload in parts, take a part, or complete or abort the upload."""
        store, name = self.store, query.get("uploadId")
        if "uploads" in query:
            name = store.new_upload_id()
            store.uploads[name] = (key, {})
            self._send_xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>")
        elif name not in store.uploads:
            self._refuse(404, "NoSuchUpload")
        elif self.command == "PUT":
            store.uploads[name][1][int(query["partNumber"])] = body
            self._answer(ETag=f'"{query["partNumber"]}"')
        else:
            parts = store.uploads.pop(name)[1]
            if self.command == "POST":
                store.objects[key] = b"".join(parts[n] for n in sorted(parts))
                self._send_xml(
                    "CompleteMultipartUploadResult", f"<Key>{escape(key)}</Key><ETag>x</ETag>"
                )
            else:
                self._answer(204)

    def _send_xml(self, kind, inner):
        """Answer with an XML document of S3's, whose outermost element is `kind`."""
        self._answer(200, f"<{kind}>{inner}</{kind}>".encode(), Content_Type="application/xml")
