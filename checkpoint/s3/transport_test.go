package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
)

// A sameAnswer is a store that answers each request alike, and hangs up after some. One goroutine
// at a time makes requests.
type sameAnswer struct {
	status int
	header http.Header
	body   func() io.Reader // makes the body of an answer
	left   int              // answers that are still given
	taken  int64            // bytes of bodies that were read
}

// RoundTrip implements http.RoundTripper.
func (s *sameAnswer) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.left--; s.left < 0 {
		return nil, errors.New("the store has hung up")
	}
	if r.Body != nil {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
	}
	w := &http.Response{StatusCode: s.status, Status: http.StatusText(s.status), ProtoMajor: 1,
		ProtoMinor: 1, Header: s.header, Request: r, ContentLength: -1, Body: http.NoBody}
	if n, err := strconv.ParseInt(s.header.Get("Content-Length"), 10, 64); err == nil {
		w.ContentLength = n
	}
	if r.Method != http.MethodHead {
		w.Body = io.NopCloser(countedReader{s.body(), &s.taken})
	}
	return w, nil
}

// A countedReader counts in n the bytes that are read.
type countedReader struct {
	io.Reader
	n *int64
}

// Read implements io.Reader.
func (c countedReader) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	*c.n += int64(n)
	return n, err
}

// newTestBucket returns a bucket whose requests go to a transport, and are tried twice, without
// pauses. It sets variables of the environment until the test ends.
func newTestBucket(t testing.TB, transport http.RoundTripper) *Bucket {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "someone")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
	t.Setenv("HOME", t.TempDir())
	b, err := Open("s3://models/runs")
	if err == nil {
		err = b.connect(settings{host: "127.0.0.1:1", region: "us-east-1"}, transport)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.tries, b.wait = 2, func(context.Context, time.Duration) error { return nil }
	return b
}

const (
	aList    = `<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>models</Name><Prefix>runs/</Prefix><EncodingType>url</EncodingType>%s</ListBucketResult>`
	anObject = `<Contents><Key>runs%2Fa</Key><LastModified>2001-09-09T01:46:40.000Z</LastModified><ETag>"x"</ETag><Size>7</Size></Contents>`
)

// twoParts returns an upload of two parts, of 8 and 4 bytes, that has not begun.
func twoParts(b *Bucket) *Upload {
	return &Upload{bucket: b, name: "a", size: 12, unit: 8, check: true}
}

// askEverything makes every kind of request to b, whose transport is s, and checks what comes of
// each: an error says what cannot be done. It reports by Errorf.
func askEverything(t testing.TB, b *Bucket, s *sameAnswer) {
	t.Helper()
	each := func(what string, f func() error) {
		s.left = 6
		if err := f(); err != nil && !strings.HasPrefix(err.Error(), "cannot ") && !isGone(err) {
			t.Errorf("%s: %v, which does not say what cannot be done", what, err)
		}
	}
	for _, deep := range []bool{false, true} {
		each("list", func() error {
			found, err := b.list(t.Context(), "", deep)
			for _, o := range found {
				if err == nil && o.size < 0 {
					t.Errorf("it lists %+v", o)
				}
			}
			return err
		})
	}
	each("uploads", func() error {
		_, err := b.uploads(t.Context(), "")
		return err
	})
	each("stat", func() error {
		o, err := b.stat(t.Context(), "a")
		if err == nil && o.size < 0 {
			t.Errorf("there are %d bytes", o.size)
		}
		return err
	})
	each("a small file", func() error { return b.put(t.Context(), "a", []byte("text")) })
	each("remove", func() error { return b.remove(t.Context(), "a") })
	each("read", func() error { return b.read(t.Context(), "a", make([]byte, 5), 3) })
	each("upload", func() error {
		u := twoParts(b)
		if err := u.begin(t.Context()); err != nil {
			return err
		}
		if u.id == "" {
			t.Error("an upload without a name")
		}
		for at, part := range map[int][]byte{0: make([]byte, 8), 8: make([]byte, 4)} {
			if err := u.Write(t.Context(), at, part); err != nil {
				return errors.Join(err, u.Abort(t.Context()))
			}
		}
		return u.Close(t.Context())
	})
	each("attempts of checkpoints", func() error {
		_, _, err := b.List(t.Context())
		return err
	})
	each("files", func() error {
		_, err := b.Files(t.Context(), snapshot.Attempt{})
		return err
	})
}

// FuzzAnswers has a store say anything to every request.
func FuzzAnswers(f *testing.F) {
	for _, body := range []string{
		fmt.Sprintf(aList, anObject),
		fmt.Sprintf(aList,
			"<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"+
				anObject),
		fmt.Sprintf(aList,
			"<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"),
		fmt.Sprintf(aList,
			"<CommonPrefixes><Prefix>runs%2Fstep-000000000001-0123456789abcdef%2F</Prefix></Com"+
				"monPrefixes>"),
		fmt.Sprintf(aList, "<Contents><Key>runs/../../x</Key><Size>-5</Size></Contents>"),
		`<ListMultipartUploadsResult><Bucket>models</Bucket><IsTruncated>true</IsTruncated><NextKeyMarker>runs/a</NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker><Upload><Key>runs/a</Key><UploadId>1</UploadId></Upload></ListMultipartUploadsResult>`,
		`<InitiateMultipartUploadResult><Bucket>models</Bucket><Key>runs/a</Key><UploadId>1</UploadId></InitiateMultipartUploadResult>`,
		`<InitiateMultipartUploadResult/>`,
		`<CompleteMultipartUploadResult><Bucket>models</Bucket><Key>runs/a</Key><ETag>"x"</ETag></CompleteMultipartUploadResult>`,
		`<Error><Code>SlowDown</Code><Message>later</Message></Error>`,
		`<Error><Code>NoSuchBucket</Code></Error>`, `<Error></Error>`,
		`<html><body>log in first</body></html>`, ``, `<`, strings.Repeat("<a>", 20000),
		`<!DOCTYPE a [<!ENTITY b "c">]><ListBucketResult>&b;</ListBucketResult>`,
	} {
		for _, status := range []int{200, 403} {
			f.Add(status, "4", "bytes 3-7/12", []byte(body))
		}
	}
	f.Add(200, "", "", []byte(fmt.Sprintf(aList, anObject)))
	f.Add(206, "-1", "bytes 0-4/12", []byte("01234"))
	// which the library takes for neither an error nor an object
	f.Add(202, "0", "bytes 3-", []byte(`<CompleteMultipartUploadResult/>`))
	f.Add(503, "99999999999999999999", "bytes 3-", []byte("<html>"))
	s := &sameAnswer{}
	b := newTestBucket(f, s)
	b.tries = 1
	f.Fuzz(func(t *testing.T, status int, length, part string, body []byte) {
		if status < 200 || status > 599 {
			t.Skip("no status of an answer")
		}
		header := http.Header{"Etag": {`"x"`}, "Last-Modified": {"Sun, 09 Sep 2001 01:46:40 GMT"},
			"Content-Range": {part}}
		if length != "" {
			header.Set("Content-Length", length)
		}
		s.status, s.header, s.body = status, header, func() io.Reader {
			return bytes.NewReader(body)
		}
		askEverything(t, b, s)
	})
}

// endless is a reader that repeats a text for ever.
type endless struct {
	text string
	at   int
}

// Read implements io.Reader.
func (e *endless) Read(b []byte) (n int, err error) {
	for n < len(b) {
		k := copy(b[n:], e.text[e.at%len(e.text):])
		n, e.at = n+k, e.at+k
	}
	return n, nil
}

// TestAnswers has a store say what no store does. Each is refused with its reason, and none is read
// for ever.
func TestAnswers(t *testing.T) {
	list := func(b *Bucket) error {
		_, err := b.list(t.Context(), "", true)
		return err
	}
	stat := func(b *Bucket) error {
		_, err := b.stat(t.Context(), "a")
		return err
	}
	read := func(b *Bucket) error { return b.read(t.Context(), "a", make([]byte, 5), 3) }
	upload := func(b *Bucket) error { return twoParts(b).begin(t.Context()) }
	page := "<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
	for _, c := range []struct {
		name, body, length, part string
		status                   int
		ask                      func(*Bucket) error
		want                     string
	}{
		{"a page of a proxy", "<html>log in</html>", "", "", 200, list,
			`does not answer as S3 does, tried 2 times: Get "http://127.0.0.1:1/models/?`},
		{"a page of a proxy", "<html>log in</html>", "", "", 200, list,
			`XML with the root ListBucketResult is due, and it says "<html>log in</html>"; is AWS_ENDPOINT_URL_S3 right`},
		{"a page of a proxy for an upload", "<html>log in</html>", "", "", 200, upload,
			"XML with the root InitiateMultipartUploadResult is due"},
		{"an upload without a name", "<InitiateMultipartUploadResult/>", "", "", 200, upload,
			"cannot write s3://models/runs/a: http://127.0.0.1:1 does not answer as S3 does, " +
				"tried 2 times: it gives the upload no name"},
		{"another folder", fmt.Sprintf(aList, strings.ReplaceAll(anObject, "runs", "other")), "",
			"", 200, list, `it lists "other/a", which does not begin with "runs/"`},
		{"fewer than no bytes", fmt.Sprintf(aList, strings.ReplaceAll(anObject, "7", "-7")), "", "",
			200, list, `it lists "runs/a" with -7 bytes`},
		{"a list that begins again", fmt.Sprintf(aList, anObject+page), "", "", 200, list,
			`its list begins again, with "runs/a"`},
		{"a cut list", fmt.Sprintf(aList, anObject)[:300], "", "", 200, list, "does not answer " +
			"as S3 does, tried 2 times: XML syntax error on line 1: unexpected EOF"},
		{"no size", "", "", "", 200, stat, "cannot read s3://models/runs/a: http://127.0.0.1:1 " +
			"does not answer as S3 does, tried 2 times: it does not say how many bytes runs/a has"},
		{"the whole object", "01234567", "8", "", 200, read,
			`bytes 3-7 were asked for, and it gives the range ""`},
		{"another part", "01234", "5", "bytes 0-4/8", 206, read,
			`bytes 3-7 were asked for, and it gives the range "bytes 0-4/8"`},
		{"half a part", "01", "5", "bytes 3-7/8", 206, read,
			"cannot be reached, tried 2 times: Get \"s3://models/runs/a\": unexpected EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			header := http.Header{"Last-Modified": {"Sun, 09 Sep 2001 01:46:40 GMT"},
				"Content-Range": {c.part}}
			if c.length != "" {
				header.Set("Content-Length", c.length)
			}
			s := &sameAnswer{status: c.status, header: header, body: func() io.Reader {
				return strings.NewReader(c.body)
			}, left: 10}
			if err := c.ask(newTestBucket(t, s)); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	for name, c := range map[string]struct {
		status int
		ask    func(*Bucket) error
	}{"an endless list": {200, list}, "an endless upload": {200, upload},
		"an endless error": {403, list}} {
		t.Run(name, func(t *testing.T) {
			s := &sameAnswer{status: c.status, header: http.Header{}, left: 10}
			s.body = func() io.Reader {
				return io.MultiReader(strings.NewReader("<ListBucketResult>"),
					&endless{text: "<Contents><Key>runs/a</Key></Contents>"})
			}
			if err := c.ask(newTestBucket(t, s)); err == nil ||
				!strings.Contains(err.Error(), "it says more than 16777216 bytes") ||
				s.taken > 3*maxAnswerBytes {
				t.Errorf("%d bytes read: %v", s.taken, err)
			}
		})
	}
}
