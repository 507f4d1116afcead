package tcp

import (
	"crypto/ed25519"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/fabric"
)

// TestNamesOfHosts: names that a shell, a terminal or a file system takes for something else are
// none for hosts, whoever says them.
func TestNamesOfHosts(t *testing.T) {
	j := newJob(t, Config{})
	for _, name := range []fabric.Host{"", ".", "..", "-rf", "--help", "a b", "a/b", "a\nb",
		"\x1b[31m", ".hidden", "_", fabric.Host(strings.Repeat("a", 65))} {
		wantError(t, CheckName(name), "cannot be the name of a host", "letter or digit")
		public, key, _ := ed25519.GenerateKey(nil)
		_, err := j.helloWithToken(
			hello{Protocol: Protocol, Version: "1.0", Want: wantJoin, Name: name,
				Key: public})
		wantError(t, err, "cannot be the name of a host")
		certificate, err := j.a.authority.certify(name, public)
		if err != nil {
			t.Fatal(err)
		}
		_, config, err := j.a.authority.tlsConfigs(certificate, key)
		if err != nil {
			t.Fatal(err)
		}
		err = j.sayHello(j.dialTLS(config), hello{Want: wantLink, Job: "digits", To: "a"})
		if name == "" {
			wantError(t, err, "no member of this job")
		} else {
			wantError(t, err, "refused", "cannot be the name of a host")
		}
	}
	for _, name := range []fabric.Host{"a", "7", "host-1.example.org", "A_b"} {
		if err := CheckName(name); err != nil {
			t.Error(err)
		}
	}
	j.checkUnhurt()
}

// TestHangUpAmidDialling: an agent whose call breaks off before its streams of data are open is not
// waited for, so that it can call again.
func TestHangUpAmidDialling(t *testing.T) {
	j := newJob(t, Config{})
	conn, err := net.Dial("tcp", listenAndServe(t, func(c net.Conn) {
		(&frames{from: c}).nextFrame(kindWelcome)
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	w := newWire(conn.(*net.TCPConn))
	o := &opening{peer: identity{host: "c"}, came: make(chan arrival)}
	_, err = j.a.awaitData(newStream(w, w), o, nil)
	wantError(t, err, "c hung up before all of its streams of data were open")
}

// TestProtocolIsDocumented: docs/formats/link.md describes the version of the protocol that agents
// speak.
func TestProtocolIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/formats/link.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Protocol version **%d**", "| `protocol` | all | %d |"} {
		if want = fmt.Sprintf(want, Protocol); !strings.Contains(string(page), want) {
			t.Errorf("docs/formats/link.md does not say %q", want)
		}
	}
}
