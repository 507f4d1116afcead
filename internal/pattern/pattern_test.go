package pattern_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/pattern"
)

// A pattern does what its regular expression does, on many goroutines at once. One that is none is
// noticed when it is used.
func TestPattern(t *testing.T) {
	p := pattern.New(`layers\.(\d+)`)
	want := []string{"layers.17", "17"}
	g := group.New(t.Context())
	for range 4 {
		g.Go("match", func(context.Context) error {
			const text = "model.layers.17.weight"
			if d := cmp.Diff(want, p.FindStringSubmatch(text)); d != "" {
				t.Error(d)
			}
			if b := p.FindSubmatch([]byte(text)); len(b) != 2 || string(b[1]) != want[1] {
				t.Errorf("%q", b)
			}
			if !p.MatchString(text) || p.MatchString("layers.x") || p.FindString(text) != want[0] ||
				p.ReplaceAllString(text, "l$1") != "model.l17.weight" {
				t.Error("it matches something else")
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	bad := pattern.New(`(`)
	defer func() {
		if recover() == nil {
			t.Error("a text that is no regular expression is used")
		}
	}()
	bad.MatchString("")
}
