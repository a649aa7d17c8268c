"""lib_server - a strict S3 server in memory, which can misbehave at a given request.

It does not follow our client: it checks the same as a real server, and more. Each request must be
signed by AWS Signature Version 4 (recomputed here, from AWS's documentation), with a date within 15
minutes of the server's clock; each body must have the SHA-256 that its header says; a completion
must name the parts in order with their ETags, and all but the last must be of `part_min` bytes.

    server = Server(kind="put")      # what is honoured of If-None-Match: put, complete, both, none;
                                     # racy: as complete, but the name is looked for before the
                                     # object is made, and so several at once all make it;
                                     # racy_put: as put, likewise; racy_both: that, and complete
    server.endpoint, server.environment
    server.fault = Fault(number=7, what="drop", after=True)     # the 7th request from now on
    server.objects, server.uploads                              # to be looked at
    server.delay_s, server.is_delayed = 0.1, lambda request: True   # or a Crowd
    server.settle()                  # no client is connected, all that they sent is carried out

A fault happens once (`times`), before the request has its effect or after it:

    drop            the connection is closed without an answer
    500 503 409 412 an answer of that status, with the body of such an error
    error200        200 with an error in the body
    longer shorter  a Content-Length that is larger, or smaller, than the body
    stall           no answer for `stall_s`
    truncated       the connection is closed in the middle of the body
    damaged         a byte of the body is another one; of a request with a body, of that
    stale           a listing as it was `lag` changes ago
"""

import calendar
import collections
import email.utils
import hashlib
import hmac
import http.server
import itertools
import re
import threading
import time
import traceback
import urllib.parse
import xml.etree.ElementTree as ElementTree
from xml.sax.saxutils import escape

ERRORS = {400: "InvalidRequest", 403: "AccessDenied", 404: "NoSuchKey",
          409: "ConditionalRequestConflict", 412: "PreconditionFailed", 500: "InternalError",
          501: "NotImplemented", 503: "SlowDown"}
FAULTS = ("drop", "500", "503", "409", "412", "error200", "longer", "shorter", "stall",
          "truncated", "damaged", "stale")
RACERS = 4  # of the probe (storage/bucket/race.c)
TABLES = 65536  # a shard's checksum table and header, read before its data; the manifest


def is_data(request):
    """Of a shard's tensors."""
    first, _, last = request.headers.get("Range", "bytes=0-0").partition("=")[2].partition("-")
    return request.command == "GET" and int(last or 0) - int(first or 0) > TABLES


class Fault:
    def __init__(self, number, what, after=False, times=1, match=None):
        self.number, self.what, self.after, self.times = number, what, after, times
        self.match = match or (lambda request: True)  # requests that are counted
        self.seen, self.done = 0, 0

    def strikes(self, request):
        if not self.match(request):
            return False
        self.seen += 1
        is_due = self.seen >= self.number and self.done < self.times
        self.done += is_due
        return is_due


class Crowd:
    """Delays requests until `wanted` of them wait at once, or one has waited for WAIT_S. For
    Server.is_delayed; `most`: the most that waited at once."""

    WAIT_S = 1  # shorter than a stall by the clients' limits

    def __init__(self, wanted, match):
        self.wanted, self.match = wanted, match
        self.now, self.most, self.is_over = 0, 0, False
        self.changed = threading.Condition()

    def __call__(self, request):
        if not self.match(request):
            return False
        with self.changed:
            self.now += 1
            self.most = max(self.most, self.now)
            self.is_over = self.is_over or self.most >= self.wanted
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.is_over, self.WAIT_S)
            self.is_over = True
            self.now -= 1
        return False


class Refusal(Exception):
    def __init__(self, status, code=None):
        super().__init__(status, code)
        self.status, self.code = status, code or ERRORS[status]


class Answer:
    def __init__(self, status=200, body=b"", **headers):
        self.status, self.body = status, body
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def refusal_body(code):
    return (f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>told</Message></Error>"
            .encode())


class Object:
    def __init__(self, data, etag, meta, changed):
        self.data, self.etag, self.meta, self.changed = data, etag, meta, changed


class Upload:
    def __init__(self, key, meta, began):
        self.key, self.meta, self.began, self.parts = key, meta, began, {}


class Server:
    def __init__(self, kind="both", part_min=65536, region="us-east-1", bucket="checkpoints",
                 certificate=None):
        self.kind, self.part_min, self.region, self.bucket = kind, part_min, region, bucket
        self.keys = {"AKTEST": ("secret-of-the-tests", None)}  # access key: secret, token
        self.objects, self.uploads, self.history = {}, {}, []
        self.log, self.fault, self.stall_s, self.lag, self.page = [], None, 3, 3, 1000
        self.clock_s, self.delay_s, self.bugs = 0, 0, []
        self.is_delayed = lambda request: True  # by delay_s
        self.instance_role, self.web_token, self.lifetime_s = None, None, 3600
        self.given, self.read = 0, collections.Counter()  # bytes that GET gave, by key
        self.lock, self.ids = threading.RLock(), itertools.count(1)
        self.raced, self.racers = threading.Condition(), collections.Counter()
        self.connections, self.one_left = 0, threading.Condition()
        handler = type("Handler", (Handler,), {"s3": self})
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        if certificate:
            import ssl
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate[1], certificate[0])
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.scheme = "https" if certificate else "http"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    @property
    def endpoint(self):
        return f"{self.scheme}://localhost:{self.http.server_address[1]}"

    @property
    def environment(self):
        return {"AWS_ACCESS_KEY_ID": "AKTEST", "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
                "AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": self.region}

    def now(self):
        return time.time() + self.clock_s

    def settle(self):
        with self.one_left:
            assert self.one_left.wait_for(lambda: self.connections == 0, 30), "who is connected?"

    def count(self, more):
        with self.one_left:
            self.connections += more
            self.one_left.notify_all()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    # ---- the signature ----

    def check_signature(self, request):
        given = request.headers.get("Authorization", "")
        found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request,"
                             r"\s*SignedHeaders=([^,]+),\s*Signature=([0-9a-f]{64})", given)
        if not found:
            raise Refusal(403)
        access, day, region, signed, signature = found.groups()
        if access not in self.keys:
            raise Refusal(403, "InvalidAccessKeyId")
        secret, token = self.keys[access]
        if token is not None and request.headers.get("x-amz-security-token") != token:
            raise Refusal(400, "ExpiredToken")
        date = request.headers.get("x-amz-date", "")
        names = signed.split(";")
        for name in request.headers:
            if name.lower().startswith("x-amz-") and name.lower() not in names:
                raise Refusal(403)
        if "host" not in names or region != self.region or not date.startswith(day):
            raise Refusal(400, "AuthorizationHeaderMalformed")
        skew = abs(calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ")) - self.now())
        if skew > 900:
            raise Refusal(403, "RequestTimeTooSkewed")
        pairs = sorted(pair if "=" in pair else pair + "=" for pair in request.query.split("&")
                       if pair)
        lines = "".join(f"{name}:{' '.join(request.headers[name].split())}\n" for name in names)
        canonical = "\n".join((request.command, request.raw_path, "&".join(pairs), lines, signed,
                               request.headers.get("x-amz-content-sha256", "")))
        scope = f"{day}/{region}/s3/aws4_request"
        to_sign = "\n".join(("AWS4-HMAC-SHA256", date, scope,
                             hashlib.sha256(canonical.encode()).hexdigest()))
        key = b"AWS4" + secret.encode()
        for step in (day, region, "s3", "aws4_request", to_sign):
            key = hmac.new(key, step.encode(), hashlib.sha256).digest()
        if key.hex() != signature:
            raise Refusal(403, "SignatureDoesNotMatch")

    def check_body(self, request):
        given = request.headers.get("x-amz-content-sha256", "")
        if hashlib.sha256(request.body).hexdigest() != given:
            raise Refusal(400, "XAmzContentSHA256Mismatch")

    # ---- the requests ----

    def perform(self, request):
        """Checks and carries out; the state changes under the lock."""
        self.check_signature(request)
        self.check_body(request)
        parameters = request.parameters
        if request.bucket != self.bucket:
            raise Refusal(404, "NoSuchBucket")
        known = {"uploads", "uploadId", "partNumber", "list-type", "prefix", "delimiter",
                 "continuation-token", "max-keys", "encoding-type", "key-marker",
                 "upload-id-marker", "part-number-marker"}
        if not set(parameters) <= known:
            raise Refusal(501)
        route = (request.command, bool(request.key), "uploads" in parameters,
                 "uploadId" in parameters)
        routes = {("PUT", True, False, False): self.put, ("PUT", True, False, True): self.put_part,
                  ("POST", True, True, False): self.begin, ("POST", True, False, True):
                  self.complete, ("DELETE", True, False, False): self.delete,
                  ("DELETE", True, False, True): self.abort, ("GET", True, False, False): self.get,
                  ("HEAD", True, False, False): self.get, ("GET", True, False, True):
                  self.list_parts, ("GET", False, False, False): self.list_objects,
                  ("GET", False, True, False): self.list_uploads}
        if route not in routes:
            raise Refusal(501)
        request.was_taken = request.key in self.objects
        if routes[route] == self.racy:
            self.await_racers(request.key)
        with self.lock:
            return routes[route](request)

    def await_racers(self, key):
        """Until the writers that the probe lets race for a key are all here."""
        if not key.endswith("-race"):
            return
        with self.raced:
            self.racers[key] += 1
            self.raced.notify_all()
            assert self.raced.wait_for(lambda: self.racers[key] >= RACERS, 60), self.racers

    @property
    def racy(self):
        """The request that looks before it writes."""
        return {"racy": self.complete, "racy_put": self.put, "racy_both": self.put}.get(self.kind)

    def remember(self):
        self.history = self.history[-16:] + [dict(self.objects)]

    def refuse_taken(self, request, honoured):
        wanted = request.headers.get("If-None-Match")
        if wanted is None:
            return
        if wanted != "*":
            raise Refusal(501)
        if not honoured and self.kind in ("complete", "racy") and request.command == "PUT":
            raise Refusal(501)
        is_late = self.racy == (self.put if request.command == "PUT" else self.complete)
        if honoured and (request.was_taken if is_late else request.key in self.objects):
            raise Refusal(412)

    @staticmethod
    def meta_of(request):
        return {name.lower(): value for name, value in request.headers.items()
                if name.lower().startswith("x-amz-meta-")}

    def put(self, request):
        self.refuse_taken(request, self.kind in ("put", "both", "racy_put", "racy_both"))
        self.remember()
        etag = hashlib.md5(request.body).hexdigest()
        self.objects[request.key] = Object(request.body, etag, self.meta_of(request), self.now())
        return Answer(ETag=f'"{etag}"')

    def begin(self, request):
        name = f"upload-{next(self.ids)}"
        self.uploads[name] = Upload(request.key, self.meta_of(request), self.now())
        return Answer(body=f"<?xml version='1.0'?><InitiateMultipartUploadResult><Bucket>b</Bucket>"
                      f"<UploadId>{name}</UploadId></InitiateMultipartUploadResult>".encode())

    def upload_of(self, request):
        upload = self.uploads.get(request.parameters["uploadId"])
        if upload is None or upload.key != request.key:
            raise Refusal(404, "NoSuchUpload")
        return upload

    def put_part(self, request):
        upload, number = self.upload_of(request), int(request.parameters["partNumber"])
        if not 1 <= number <= 10000:
            raise Refusal(400)
        etag = hashlib.md5(request.body).hexdigest()
        upload.parts[number] = Object(request.body, etag, {}, self.now())
        return Answer(ETag=f'"{etag}"')

    def complete(self, request):
        upload = self.upload_of(request)
        self.refuse_taken(request, self.kind in ("complete", "racy", "both", "racy_both"))
        tree = ElementTree.fromstring(request.body)
        named = [(int(part.find("PartNumber").text), part.find("ETag").text.strip('"'))
                 for part in tree.iter("Part")]
        if not named or named != sorted(set(named)):
            raise Refusal(400, "InvalidPartOrder")
        for number, etag in named:
            if number not in upload.parts or upload.parts[number].etag != etag:
                raise Refusal(400, "InvalidPart")
        if any(len(upload.parts[number].data) < self.part_min for number, _ in named[:-1]):
            raise Refusal(400, "EntityTooSmall")
        self.remember()
        sums = b"".join(bytes.fromhex(etag) for _, etag in named)
        etag = f"{hashlib.md5(sums).hexdigest()}-{len(named)}"
        data = b"".join(upload.parts[number].data for number, _ in named)
        self.objects[request.key] = Object(data, etag, upload.meta, self.now())
        del self.uploads[request.parameters["uploadId"]]
        told = "" if self.kind == "put" else f"&quot;{etag}&quot;"  # as Ceph: empty
        return Answer(body=f"<?xml version='1.0'?><CompleteMultipartUploadResult><ETag>{told}"
                      f"</ETag></CompleteMultipartUploadResult>".encode())

    def abort(self, request):
        self.upload_of(request)
        del self.uploads[request.parameters["uploadId"]]
        return Answer(204)

    def delete(self, request):
        self.remember()
        self.objects.pop(request.key, None)
        return Answer(204)

    def get(self, request):
        found = self.objects.get(request.key)
        if found is None:
            raise Refusal(404)
        answer = Answer(body=found.data, ETag=f'"{found.etag}"',
                        Last_Modified=email.utils.formatdate(found.changed, usegmt=True))
        answer.headers.update(found.meta)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if asked and request.command == "GET":
            begin, end = int(asked[1]), min(int(asked[2]), len(found.data) - 1)
            if begin > end:
                raise Refusal(416, "InvalidRange")
            answer.status, answer.body = 206, found.data[begin:end + 1]
            answer.headers["Content-Range"] = f"bytes {begin}-{end}/{len(found.data)}"
        if request.command == "GET":
            self.read[request.key] += len(answer.body)
        return answer

    def list_objects(self, request):
        parameters = request.parameters
        if parameters.get("list-type") != "2":
            raise Refusal(501)
        objects = self.objects
        if request.is_stale and self.history:
            objects = self.history[-min(self.lag, len(self.history))]
        prefix, delimiter = parameters.get("prefix", ""), parameters.get("delimiter", "")
        entries = []
        for key in sorted(objects):
            rest = key[len(prefix):]
            if not key.startswith(prefix):
                continue
            at = rest.find(delimiter) if delimiter else -1
            entry = (prefix + rest[:at + 1], None) if at >= 0 else (key, objects[key])
            if not entries or entries[-1][0] != entry[0]:
                entries.append(entry)
        after = parameters.get("continuation-token", "")
        entries = [entry for entry in entries if entry[0] > after[1:]]
        limit = min(int(parameters.get("max-keys", self.page)), self.page)
        body = "".join(
            f"<CommonPrefixes><Prefix>{urllib.parse.quote(key)}</Prefix></CommonPrefixes>"
            if found is None else f"<Contents><Key>{urllib.parse.quote(key)}</Key>"
            f"<ETag>&quot;{found.etag}&quot;</ETag><Size>{len(found.data)}</Size></Contents>"
            for key, found in entries[:limit])
        is_cut = len(entries) > limit
        token = (f"<NextContinuationToken>+{escape(entries[limit - 1][0])}"
                 "</NextContinuationToken>" if is_cut else "")
        return Answer(body=f"<?xml version='1.0'?><ListBucketResult><IsTruncated>"
                      f"{'true' if is_cut else 'false'}</IsTruncated>{body}"
                      f"{token}</ListBucketResult>".encode())

    @staticmethod
    def stamp(when):
        return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(when))

    def list_uploads(self, request):
        prefix = request.parameters.get("prefix", "")
        marker = (request.parameters.get("key-marker", ""),
                  request.parameters.get("upload-id-marker", ""))
        found = sorted((upload.key, name) for name, upload in self.uploads.items()
                       if upload.key.startswith(prefix) and (upload.key, name) > marker)
        body = "".join(f"<Upload><Key>{escape(key)}</Key><UploadId>{name}</UploadId><Initiated>"
                       f"{self.stamp(self.uploads[name].began)}</Initiated></Upload>"
                       for key, name in found[:self.page])
        is_cut = len(found) > self.page
        tail = (f"<NextKeyMarker>{escape(found[self.page - 1][0])}</NextKeyMarker>"
                f"<NextUploadIdMarker>{found[self.page - 1][1]}</NextUploadIdMarker>"
                if is_cut else "")
        return Answer(body=f"<?xml version='1.0'?><ListMultipartUploadsResult>{tail}<IsTruncated>"
                      f"{'true' if is_cut else 'false'}</IsTruncated>{body}"
                      f"</ListMultipartUploadsResult>".encode())

    def list_parts(self, request):
        upload = self.upload_of(request)
        after = int(request.parameters.get("part-number-marker", 0))
        numbers = sorted(number for number in upload.parts if number > after)
        body = "".join(
            f"<Part><PartNumber>{number}</PartNumber><LastModified>"
            f"{self.stamp(upload.parts[number].changed)}</LastModified><ETag>&quot;"
            f"{upload.parts[number].etag}&quot;</ETag><Size>{len(upload.parts[number].data)}"
            f"</Size></Part>" for number in numbers[:self.page])
        is_cut = len(numbers) > self.page
        tail = (f"<NextPartNumberMarker>{numbers[self.page - 1]}</NextPartNumberMarker>"
                if is_cut else "")
        return Answer(body=f"<?xml version='1.0'?><ListPartsResult>{tail}<IsTruncated>"
                      f"{'true' if is_cut else 'false'}</IsTruncated>{body}</ListPartsResult>"
                      .encode())

    # ---- the services that give keys ----

    def give_keys(self):
        """New ones; the former are unknown from now on."""
        number, self.given = next(self.ids), self.given + 1
        access, secret, token = f"AKGIVEN{number}", f"given-secret-{number}", f"token/{number}=+"
        self.keys = {access: (secret, token)}
        return access, secret, token, self.stamp(self.now() + self.lifetime_s)

    def serve_keys(self, request):
        """None: it is no request for keys."""
        if request.command == "POST" and request.raw_path == "/" and self.web_token is not None:
            form = dict(urllib.parse.parse_qsl(request.body.decode()))
            if form.get("WebIdentityToken") != self.web_token or "RoleArn" not in form:
                return Answer(403, refusal_body("InvalidIdentityToken"))
            access, secret, token, end = self.give_keys()
            return Answer(body=(
                f"<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
                f"<AccessKeyId>{access}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>"
                f"<SessionToken>{token}</SessionToken><Expiration>{end}</Expiration></Credentials>"
                f"</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>").encode())
        if self.instance_role is None or not request.raw_path.startswith("/latest/"):
            return None
        if request.command == "PUT" and request.raw_path == "/latest/api/token":
            return Answer(body=b"session-of-the-instance")
        if request.headers.get("X-aws-ec2-metadata-token") != "session-of-the-instance":
            return Answer(401)
        base = "/latest/meta-data/iam/security-credentials/"
        if request.raw_path == base:
            return Answer(body=self.instance_role.encode())
        access, secret, token, end = self.give_keys()
        return Answer(body=(f'{{"Code" : "Success", "AccessKeyId" : "{access}", "SecretAccessKey" :'
                            f' "{secret}", "Token" : "{token}", "Expiration" : "{end}"}}').encode())


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    s3 = None
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        self.s3.count(1)

    def finish(self):
        super().finish()
        self.s3.count(-1)

    def log_message(self, *_):
        pass

    def date_time_string(self, timestamp=None):
        return email.utils.formatdate(self.s3.now() if timestamp is None else timestamp,
                                      usegmt=True)

    def read_request(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.raw_path, _, self.query = self.path.partition("?")
        path = urllib.parse.unquote(self.raw_path)
        host = self.headers.get("Host", "").split(":")[0]
        if host.startswith(self.s3.bucket + "."):
            self.bucket, self.key = self.s3.bucket, path[1:]
        else:
            self.bucket, _, self.key = path[1:].partition("/")
        self.parameters = dict(urllib.parse.parse_qsl(self.query, keep_blank_values=True))
        self.is_stale = False

    def handle_one(self):
        s3 = self.s3
        self.read_request()
        keys = s3.serve_keys(self)
        if keys is not None:
            return self.send(keys, None)
        with s3.lock:
            s3.log.append((self.command, self.path, len(self.body)))
            fault = s3.fault if s3.fault and s3.fault.strikes(self) else None
        if s3.delay_s and s3.is_delayed(self):
            time.sleep(s3.delay_s)
        if fault is None:
            return self.send(self.answer(), None)
        if fault.what == "stale":
            self.is_stale = True
            return self.send(self.answer(), None)
        if fault.what == "damaged" and self.body:
            middle = len(self.body) // 2
            self.body = (self.body[:middle] + bytes([self.body[middle] ^ 1])
                         + self.body[middle + 1:])
            return self.send(self.answer(), None)
        return self.misbehave(fault)

    def answer(self):
        try:
            return self.s3.perform(self)
        except Refusal as refusal:
            return Answer(refusal.status, refusal_body(refusal.code))

    def misbehave(self, fault):
        is_of_answer = fault.what in ("longer", "shorter", "truncated", "damaged")
        answer = self.answer() if fault.after or is_of_answer else None
        if fault.what == "drop":
            self.close_connection = True
        elif fault.what == "stall":
            self.close_connection = True
            time.sleep(self.s3.stall_s)
        elif fault.what == "error200":
            self.send(Answer(200, refusal_body("InternalError")), None)
        elif fault.what.isdigit():
            self.send(Answer(int(fault.what), refusal_body(ERRORS[int(fault.what)])), None)
        else:
            self.send(answer, fault.what)

    def send(self, answer, fault):
        body, length = answer.body, len(answer.body)
        if fault == "damaged" and body:
            body = bytes([body[0] ^ 0x80]) + body[1:]
        elif fault == "longer":
            length += 7
        elif fault == "shorter":
            length = max(length - 7, 0)
        elif fault == "truncated":
            body = body[:len(body) // 2]
        self.close_connection = self.close_connection or fault in ("longer", "truncated", "shorter")
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def serve(self):
        try:
            self.handle_one()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception:  # a bug of this server: the test that has it fails
            self.s3.bugs.append(traceback.format_exc())
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve
