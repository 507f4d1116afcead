// Package s3test is a store in memory that speaks as much of S3's protocol as package s3 uses, for
// tests: objects, uploads in parts, listings. It takes every signature.
package s3test

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The handler of a Server runs on the goroutine of each request. Refuse, readBody and writeXML are
// for that goroutine, and keep nothing.

// Page is how many keys one answer to a listing has at most.
const Page = 7

// A Server has one bucket. It is an http.Handler, whose requests have the bucket in their path. Any
// goroutine may use it.
type Server struct {
	bucket string // name of the bucket, which is not changed

	mu      sync.Mutex         // guards what follows, and is held while a request is answered
	objects map[string][]byte  // by key
	uploads map[string]*upload // uploads that are not completed, by identifier
	last    int                // number in the identifier of the newest upload
	log     []string           // what Log returns
}

// An upload is an upload in parts that is not completed. The lock of its Server guards it.
type upload struct {
	key   string
	parts map[int][]byte // by number, from 1
}

// New returns a server with an empty bucket.
func New(bucket string) *Server {
	return &Server{bucket: bucket, objects: map[string][]byte{}, uploads: map[string]*upload{}}
}

// Keys returns the keys of all objects, ascending.
func (s *Server) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// Get returns an object; nil if there is none. It must not be changed.
func (s *Server) Get(key string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[key]
}

// Set replaces an object, and keeps to; nil removes the object.
func (s *Server) Set(key string, to []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[key] = to; to == nil {
		delete(s.objects, key)
	}
}

// Uploads returns the keys of uploads that are not completed.
func (s *Server) Uploads() (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.uploads {
		keys = append(keys, u.key)
	}
	return keys
}

// Log returns the requests so far, as "PUT key?query".
func (s *Server) Log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// ServeHTTP implements http.Handler: it reads the whole request before it locks mu.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	body, err := readBody(r)
	if errors.Is(err, errSpoiled) {
		Refuse(w, http.StatusBadRequest, "XAmzContentSHA256Mismatch")
		return
	}
	if err != nil {
		Refuse(w, http.StatusBadRequest, "IncompleteBody") // as a rule the client has hung up
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, r.Method+" "+key+"?"+r.URL.RawQuery)
	query := r.URL.Query()
	switch {
	case bucket != s.bucket:
		Refuse(w, http.StatusNotFound, "NoSuchBucket")
	case key == "" && query.Has("uploads"):
		s.serveUploadListing(w, query)
	case key == "":
		s.serveListing(w, query)
	case query.Has("uploads") || query.Has("uploadId"):
		s.serveUpload(w, r.Method, key, query, body)
	case r.Method == http.MethodPut:
		s.objects[key] = body
		w.Header().Set("ETag", `"whole"`)
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case s.objects[key] == nil:
		Refuse(w, http.StatusNotFound, "NoSuchKey")
	default:
		w.Header().Set("ETag", `"whole"`)
		http.ServeContent(w, r, "", time.Unix(1e9, 0), bytes.NewReader(s.objects[key]))
	}
}

// Refuse answers a request with an error of S3, such as NoSuchKey, and an HTTP status.
func Refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>the test says %s</Message></Error>", code, code)
}

// errSpoiled says that a body is not what its header says.
var errSpoiled = errors.New("spoiled on the way")

// readBody reads the body of a request, which may come in signed chunks; the error is errSpoiled
// where a hash in the header is not that of the body.
func readBody(r *http.Request) ([]byte, error) {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		body, err := io.ReadAll(r.Body)
		if want, hashed := hex.DecodeString(r.Header.Get("X-Amz-Content-Sha256")); err == nil &&
			hashed == nil && len(want) > 0 {
			if sum := sha256.Sum256(body); !bytes.Equal(sum[:], want) {
				return nil, errSpoiled
			}
		}
		return append([]byte{}, body...), err
	}
	in, whole := bufio.NewReader(r.Body), []byte{}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(line, ";")
		n, err := strconv.ParseInt(strings.TrimSpace(size), 16, 64)
		if err != nil {
			return nil, err
		}
		chunk := make([]byte, n+2)
		if _, err := io.ReadFull(in, chunk); err != nil && n > 0 {
			return nil, err
		}
		if n == 0 {
			return whole, nil
		}
		whole = append(whole, chunk[:n]...)
	}
}

// writeXML answers a request with x as XML.
func writeXML(w http.ResponseWriter, x any) {
	w.Header().Set("Content-Type", "application/xml")
	if err := xml.NewEncoder(w).Encode(x); err != nil {
		panic(err) // a mistake in the types below
	}
}

// A listed is an object in a listing.
type listed struct {
	Key          string
	Size         int
	LastModified string
	ETag         string
}

// A folder is the common prefix of several names in a listing.
type folder struct{ Prefix string }

// A listing is the answer to a request for the objects.
type listing struct {
	XMLName               xml.Name `xml:"ListBucketResult"`
	Name, Prefix          string
	EncodingType          string
	IsTruncated           bool
	NextContinuationToken string
	Contents              []listed
	CommonPrefixes        []folder
}

// serveListing answers with the objects, in pages of a few keys. s.mu is held.
func (s *Server) serveListing(w http.ResponseWriter, query url.Values) {
	prefix, delimiter := query.Get("prefix"), query.Get("delimiter")
	after, out := cmp.Or(query.Get("continuation-token"), query.Get("start-after")),
		listing{Name: s.bucket, Prefix: prefix, EncodingType: "url"}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		rest, ok := strings.CutPrefix(key, prefix)
		shown := key
		if inner, _, deeper := strings.Cut(rest, delimiter); delimiter != "" && deeper {
			shown = prefix + inner + delimiter
		}
		switch {
		case !ok || shown <= after:
			continue
		case len(out.Contents)+len(out.CommonPrefixes) == Page:
			out.IsTruncated, out.NextContinuationToken = true, after
			writeXML(w, out)
			return
		case shown != key:
			out.CommonPrefixes = append(out.CommonPrefixes, folder{url.QueryEscape(shown)})
		default:
			out.Contents = append(out.Contents,
				listed{url.QueryEscape(key), len(s.objects[key]), "2001-09-09T01:46:40Z",
					`"whole"`})
		}
		after = shown
	}
	writeXML(w, out)
}

// An uploading is an upload in a listing.
type uploading struct{ Key, UploadId string }

// An uploadListing is the answer to a request for the uploads.
type uploadListing struct {
	XMLName xml.Name `xml:"ListMultipartUploadsResult"`
	Bucket  string
	Upload  []uploading
}

// serveUploadListing answers with the uploads that are not completed. s.mu is held.
func (s *Server) serveUploadListing(w http.ResponseWriter, query url.Values) {
	out := uploadListing{Bucket: s.bucket}
	for id, u := range s.uploads {
		if strings.HasPrefix(u.key, query.Get("prefix")) {
			out.Upload = append(out.Upload, uploading{u.key, id})
		}
	}
	writeXML(w, out)
}

// serveUpload begins, completes or aborts an upload, or takes a part of it. s.mu is held.
func (s *Server) serveUpload(w http.ResponseWriter, method, key string, query url.Values,
	body []byte) {
	id := query.Get("uploadId")
	u := s.uploads[id]
	switch {
	case query.Has("uploads"):
		s.last++
		id = fmt.Sprint("upload-", s.last)
		s.uploads[id] = &upload{key, map[int][]byte{}}
		writeXML(w, struct {
			XMLName               xml.Name `xml:"InitiateMultipartUploadResult"`
			Bucket, Key, UploadId string
		}{Bucket: s.bucket, Key: key, UploadId: id})
	case u == nil || u.key != key:
		Refuse(w, http.StatusNotFound, "NoSuchUpload")
	case method == http.MethodPut:
		n, _ := strconv.Atoi(query.Get("partNumber"))
		u.parts[n] = body
		w.Header().Set("ETag", fmt.Sprintf(`"part-%d"`, n))
	case method == http.MethodDelete:
		delete(s.uploads, id)
		w.WriteHeader(http.StatusNoContent)
	default:
		s.completeUpload(w, id, u, body)
	}
}

// completeUpload makes an object of the parts that the body lists. s.mu is held.
func (s *Server) completeUpload(w http.ResponseWriter, id string, u *upload, body []byte) {
	var asked struct {
		Part []struct {
			PartNumber int
			ETag       string
		}
	}
	if xml.Unmarshal(body, &asked) != nil {
		Refuse(w, http.StatusBadRequest, "MalformedXML")
		return
	}
	whole := []byte{}
	for i, p := range asked.Part {
		part, ok := u.parts[p.PartNumber]
		switch {
		case !ok || strings.Trim(p.ETag, `"`) != fmt.Sprintf("part-%d", p.PartNumber) ||
			p.PartNumber != i+1:
			Refuse(w, http.StatusBadRequest, "InvalidPart")
			return
		case i < len(asked.Part)-1 && len(part) < 5<<20:
			Refuse(w, http.StatusBadRequest, "EntityTooSmall")
			return
		}
		whole = append(whole, part...)
	}
	s.objects[u.key] = whole
	delete(s.uploads, id)
	writeXML(w, struct {
		XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
		Bucket, Key, ETag string
	}{Bucket: s.bucket, Key: u.key, ETag: `"whole"`})
}
