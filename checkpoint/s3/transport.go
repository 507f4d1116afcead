package s3

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// What answers of a store are taken for, below the library that speaks with it. The functions
// without a receiver are pure.

const (
	// maxAnswerBytes bounds an answer that is not an object. A list of 1000 names of 1024 bytes,
	// each written as %XX, has a quarter of it.
	maxAnswerBytes = 16 << 20
	// maxListed bounds the objects or uploads that are listed. So many take up to 200 MB of memory.
	maxListed = 1_000_000
)

// A protocolError is an answer that no S3 store gives.
type protocolError struct{ what string }

// Error says what is wrong with the answer.
func (n *protocolError) Error() string { return n.what }

// protocolErrorf returns a *protocolError that says, as fmt.Sprintf does, what is wrong with an
// answer.
func protocolErrorf(format string, args ...any) error {
	return &protocolError{fmt.Sprintf(format, args...)}
}

// isTransportError reports whether an error is about getting an answer, not about its content.
func isTransportError(err error) bool {
	var way *url.Error
	var odd *protocolError
	return errors.As(err, &way) && !errors.As(err, &odd)
}

// A checkedTransport checks the answers of a store before the library reads them. The library
// accepts XML of any length and with any root, so that the page of a proxy would be a list without
// objects, and accepts an object from its first byte where bytes from its middle were requested.
// Any goroutine may use it, as any http.RoundTripper.
type checkedTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper: it sends the request, and fails for an answer that no S3
// store gives. It reads the whole answer, except where that is an object.
func (a checkedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w, err := a.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if part, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok && w.StatusCode < 300 {
		from, _, _ := strings.Cut(part, "-")
		if got := w.Header.Get("Content-Range"); !strings.HasPrefix(got, "bytes "+from+"-") {
			return nil, errors.Join(
				protocolErrorf("bytes %s were asked for, and it gives the range %.100q", part, got),
				w.Body.Close())
		}
		return w, nil
	}
	body, err := io.ReadAll(io.LimitReader(w.Body, maxAnswerBytes+1))
	if err = errors.Join(err, w.Body.Close()); err != nil {
		return nil, err
	}
	if len(body) > maxAnswerBytes {
		return nil, protocolErrorf("it says more than %d bytes", maxAnswerBytes)
	}
	if want, got := expectedRoots(r), rootElement(body); w.StatusCode == http.StatusOK &&
		want != nil &&
		!slices.Contains(want, got) {
		return nil, protocolErrorf("XML with the root %s is due, and it says %.200q", want[0], body)
	}
	w.Body = io.NopCloser(bytes.NewReader(body))
	return w, nil
}

// expectedRoots returns the XML roots that an answer with status 200 to a request can have; nil if
// that is not XML.
func expectedRoots(r *http.Request) []string {
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodGet && q.Has("list-type"):
		return []string{"ListBucketResult"}
	case r.Method == http.MethodGet && q.Has("uploads"):
		return []string{"ListMultipartUploadsResult"}
	case r.Method == http.MethodPost && q.Has("uploads"):
		return []string{"InitiateMultipartUploadResult"}
	case r.Method == http.MethodPost && q.Has("uploadId"):
		// A failure after the status was sent is an Error.
		return []string{"CompleteMultipartUploadResult", "Error"}
	}
	return nil
}

// rootElement returns the name of the first element of an XML text; "" if there is none.
func rootElement(text []byte) string {
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		t, err := d.RawToken()
		if start, ok := t.(xml.StartElement); ok {
			return start.Name.Local
		}
		if err != nil {
			return ""
		}
	}
}
