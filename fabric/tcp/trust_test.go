package tcp

import (
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric/fabrictest"
)

// TestAKeptAuthority: a job that is begun again with the authority of the one before takes who has
// a token of then, or makes one of what it has kept itself. What is no authority is refused.
func TestAKeptAuthority(t *testing.T) {
	config := Config{Job: "digits", Name: "a", Version: "1.0", Listen: "127.0.0.1:0"}
	before, err := Create(config, fabrictest.NewRecorder(t))
	if err != nil {
		t.Fatal(err)
	}
	tokens := []string{before.Token(time.Hour)}
	config.Authority = before.Authority()
	before.Close()
	own, err := NewToken(config.Authority, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Create(config, fabrictest.NewRecorder(t))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for _, token := range append(tokens, own) {
		m, err := Join(t.Context(), again.Addr(), token,
			Config{Name: "b", Version: "1.0", Listen: "127.0.0.1:0"}, fabrictest.NewRecorder(t))
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
	}
	for _, wrong := range [][]byte{{}, config.Authority[:31], config.Authority[:40],
		append(make([]byte, 32), config.Authority[32:]...)} {
		config.Authority = wrong
		if m, err := Create(config, fabrictest.NewRecorder(t)); err == nil {
			m.Close()
			t.Errorf("%d bytes are taken for an authority", len(wrong))
		}
		if _, err := NewToken(wrong, time.Hour); err == nil {
			t.Errorf("%d bytes make a token", len(wrong))
		}
	}
}
