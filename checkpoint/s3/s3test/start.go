package s3test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// How tests start a store. The goroutine of the test calls Start and SetEnvironment, which fail the
// test where they cannot do it; HangUp is for the goroutine of a request.

// Start runs a store with a bucket named models until the test ends. front makes the handler that
// gets its requests first, and may answer as no good store does; nil = none. It replaces HOME and
// all AWS_ variables of the environment until the test ends, so that package s3 finds the store.
func Start(t *testing.T, front func(next http.Handler) http.Handler) *Server {
	t.Helper()
	store := New("models")
	var handler http.Handler = store
	if front != nil {
		handler = front(store)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	SetEnvironment(t, server.URL)
	return store
}

// SetEnvironment replaces HOME and all AWS_ variables of the environment until the test ends, so
// that package s3 finds the store at endpoint and nothing else.
func SetEnvironment(t *testing.T, endpoint string) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
		}
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("AWS_ACCESS_KEY_ID", "someone")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_ENDPOINT_URL_S3", endpoint)
}

// HangUp closes the connection of a request, as if the store were gone.
func HangUp(w http.ResponseWriter) {
	if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
		_ = conn.Close()
	}
}
