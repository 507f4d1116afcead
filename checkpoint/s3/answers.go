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

const (
	// mostAnswer is the bytes of an answer that is no object: a list of 1000 names of 1024 bytes,
	// each written as %XX, has a quarter of it.
	mostAnswer = 16 << 20
	// mostListed is how many objects or uploads are listed: of so many, what is kept takes up to
	// 200 MB.
	mostListed = 1_000_000
)

// nonsense is an answer that no store gives.
type nonsense struct{ what string }

func (n *nonsense) Error() string { return n.what }

// absurd says what is wrong with an answer.
func absurd(format string, args ...any) error { return &nonsense{fmt.Sprintf(format, args...)} }

// unanswered tells whether an error is one of getting an answer, and not about what that says.
func unanswered(err error) bool {
	var way *url.Error
	var odd *nonsense
	return errors.As(err, &way) && !errors.As(err, &odd)
}

// answers looks at what a store says before the library reads it. That takes XML of any length and
// with any root, so that a page of a proxy is a list without objects, and takes an object from its
// first byte on where bytes from its middle were asked for.
type answers struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	w, err := a.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if part, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok && w.StatusCode < 300 {
		from, _, _ := strings.Cut(part, "-")
		if got := w.Header.Get("Content-Range"); !strings.HasPrefix(got, "bytes "+from+"-") {
			return nil, errors.Join(
				absurd("bytes %s were asked for, and it gives the range %.100q", part, got),
				w.Body.Close())
		}
		return w, nil
	}
	body, err := io.ReadAll(io.LimitReader(w.Body, mostAnswer+1))
	if err = errors.Join(err, w.Body.Close()); err != nil {
		return nil, err
	}
	if len(body) > mostAnswer {
		return nil, absurd("it says more than %d bytes", mostAnswer)
	}
	if want, got := roots(r), root(body); w.StatusCode == http.StatusOK && want != nil &&
		!slices.Contains(want, got) {
		return nil, absurd("XML with the root %s is due, and it says %.200q", want[0], body)
	}
	w.Body = io.NopCloser(bytes.NewReader(body))
	return w, nil
}

// roots are those that the answer to a request can have; nil where it is no XML.
func roots(r *http.Request) []string {
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodGet && q.Has("list-type"):
		return []string{"ListBucketResult"}
	case r.Method == http.MethodGet && q.Has("uploads"):
		return []string{"ListMultipartUploadsResult"}
	case r.Method == http.MethodPost && q.Has("uploads"):
		return []string{"InitiateMultipartUploadResult"}
	case r.Method == http.MethodPost && q.Has("uploadId"):
		// what went wrong behind the status
		return []string{"CompleteMultipartUploadResult", "Error"}
	}
	return nil
}

// root is the name of the first element, empty where there is none.
func root(text []byte) string {
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
