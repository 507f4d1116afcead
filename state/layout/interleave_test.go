package layout

import (
	"strings"
	"testing"
)

// TestInterleave distributes the layers of specs in chunks, and refuses numbers that do not fit.
func TestInterleave(t *testing.T) {
	for _, x := range []struct {
		mesh   string
		chunks int
		want   string // the place of the last rule but one
		err    string
	}{
		{"pp=2,tp=2", 2, "pp=spread(1,8,chunks=4), tp=shard(0)", ""},
		{"pp=4,tp=2", 1, "pp=spread(1,8), tp=shard(0)", ""},
		{"tp=2", 1, "pp=spread(1,8), tp=shard(0)", "has no axis pp"},
		{"pp=1,tp=2", 2, "", "a virtual pipeline is for several"},
		{"pp=2,tp=2", 0, "", "0 chunks of layers"},
		{"pp=", 2, "", "pp="},
	} {
		s := &Spec{Shoal: Version, Mesh: x.mesh,
			Rules: []Rule{{"**layers.#.a", "pp=spread(1,8), tp=shard(0)"}, {"**", ""}}}
		err := Interleave(s, x.chunks)
		if x.err != "" {
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%s, %d: %v, want %q", x.mesh, x.chunks, err, x.err)
			}
			continue
		}
		if err != nil || s.Rules[0].Place != x.want {
			t.Errorf("%s, %d: %v, %v", x.mesh, x.chunks, s.Rules, err)
		}
	}
}
