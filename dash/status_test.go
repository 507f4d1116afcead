package dash

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestStatusRefuses asks for the status of a job without the token, for what it does not answer,
// and while this host waits for a job.
func TestStatusRefuses(t *testing.T) {
	const token = "0123456789abcdef"
	s, err := OpenStatus("--status-listen", "127.0.0.1:0", token)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		method, path, token string
		want                int
		text                string
	}{
		{"GET", "/v2/job", "", 401, "Authorization: Bearer"},
		{"GET", "/v2/job", token + "0", 401, "Authorization: Bearer"},
		{"POST", "/v2/park", "", 401, "Authorization: Bearer"},
		{"GET", "/v2/job", token, 404, "this host waits for a job"},
		{"POST", "/v2/park", token, 400, "the body is no such request"},
		{"POST", "/v2/lost", "", 401, "Authorization: Bearer"},
		{"POST", "/v2/lost", token, 400, "the body is no such request"},
		{"POST", "/v2/stop", token, 404, ""},
		{"POST", "/v2/token", token, 404, ""},
		{"DELETE", "/v2/job", token, 405, ""},
	} {
		r, err := http.NewRequest(c.method, "http://"+s.Addr()+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+c.token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != c.want || !strings.Contains(string(text), c.text) {
			t.Errorf("%s %s with token %q: %d, %s, %v; want %d, %s", c.method, c.path, c.token,
				answer.StatusCode, text, err, c.want, c.text)
		}
	}
}
