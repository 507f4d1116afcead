package tcp

import (
	"context"
	"crypto/ed25519"
	"net"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/group"
)

// TestStrangeAddresses: an address that an agent says of itself, or of others, is text that can be
// shown, and not longer than any address is: people read it where it cannot be reached.
func TestStrangeAddresses(t *testing.T) {
	j := newJob(t, Config{})
	public, key, _ := ed25519.GenerateKey(nil)
	certificate, err := j.a.authority.certify("c", public)
	if err != nil {
		t.Fatal(err)
	}
	_, config, err := j.a.authority.tlsConfigs(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	strange := "\x1b[31m" + strings.Repeat("x", 8<<10)
	if err := j.sayHello(j.dialTLS(config), hello{Want: wantLink, Job: "digits", To: "a",
		Address: strange}); err != nil {
		t.Fatal(err)
	}
	newcomers := 0
	for _, a := range j.a.knownAgents() {
		if a.Host == "c" {
			newcomers++
		}
		if a.Address != sanitize(a.Address) {
			t.Errorf("%s is said to be at %d bytes, %.10q", a.Host, len(a.Address), a.Address)
		}
	}
	if newcomers != 1 {
		t.Errorf("c is known %d times", newcomers)
	}
	here, there := net.Pipe()
	defer here.Close()
	g := group.New(t.Context())
	g.Go("mad agent", func(context.Context) error {
		defer there.Close()
		if _, err := readHello(&frames{from: there}); err != nil {
			return err
		}
		return writeJSONFrame(there, kindWelcome, welcome{Agents: []agent{{"d", strange}}})
	})
	w, err := exchangeHello(here, &frames{from: here}, hello{})
	here.Close() // nobody waits for more
	if err != nil || len(w.Agents) != 1 || w.Agents[0].Address != sanitize(strange) {
		t.Errorf("%.200v, %v", w, err)
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	j.checkUnhurt()
}
