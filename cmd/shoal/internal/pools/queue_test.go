package pools

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/pool/keeper"
)

// TestWatchedObjects: a queue that is watched is printed again when something has changed, and not
// because the object of its pool has a later time.
func TestWatchedObjects(t *testing.T) {
	dir, err := os.MkdirTemp("", "shoal") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	socket, err := keeper.Socket("main")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := keeper.State{Pool: "main", Jobs: []pool.JobView{{ID: "a", State: pool.Waiting}}}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(s) })}}
	server.Start()
	t.Cleanup(server.Close)
	q := queueView{path: keeper.PathQueue, json: true}
	var out bytes.Buffer
	for i, state := range []pool.State{pool.Waiting, pool.Waiting, pool.Running, pool.Running} {
		s.Now, s.Jobs[0].State = int64(1000+i), state
		if err := q.show(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"now":1000,`) ||
		!strings.Contains(lines[1], `"now":1002,`) {
		t.Errorf("two states of the pool are printed as %q", lines)
	}
}
