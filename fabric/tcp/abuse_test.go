package tcp

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/fabrictest"
)

// job is two agents that are linked, and what they see.
type job struct {
	t        *testing.T
	a, b     *Network
	atA, atB *fabrictest.Recorder
	log      *logged
	said     int
}

// logged is a log that a test can read.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newJob(t *testing.T, config Config) *job {
	t.Helper()
	j := &job{t: t, atA: fabrictest.NewRecorder(t), atB: fabrictest.NewRecorder(t), log: &logged{}}
	config.Job, config.Version, config.Listen = "digits", "1.0", "127.0.0.1:0"
	config.Log = slog.New(slog.NewTextHandler(j.log, nil))
	config.Name = "a"
	var err error
	if j.a, err = Create(config, j.atA); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.a.Close() })
	config.Name = "b"
	j.b = j.join(config, j.atB)
	j.unhurt()
	return j
}

// join lets somebody in through a.
func (j *job) join(config Config, h fabric.Handler) *Network {
	j.t.Helper()
	m, err := Join(j.t.Context(), j.a.Addr(), j.a.Token(time.Minute), config, h)
	if err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(func() { m.Close() })
	return m
}

func (j *job) config() Config { return Config{Name: "c", Version: "1.0", Listen: "127.0.0.1:0"} }

// unhurt checks that a and b have their link still, and that messages and pieces pass.
func (j *job) unhurt() {
	j.t.Helper()
	j.said++
	j.a.Send("b", []byte("still there?"))
	j.b.SendPiece("a", fabric.Piece{Transfer: uint64(j.said), Length: 4}, []byte("yes!"))
	j.atB.WaitMessages("a", j.said)
	j.atA.WaitArrived("b", j.said)
}

// says fails the test if an error does not contain all of the words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; it should say %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error is %q; it should say %q", err, w)
		}
	}
}

// raw dials a without any manners.
func (j *job) raw() net.Conn {
	j.t.Helper()
	c, err := net.Dial("tcp", j.a.Addr())
	if err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(func() { c.Close() })
	return c
}

// secure dials a under TLS with these settings.
func (j *job) secure(config *tls.Config) *tls.Conn {
	j.t.Helper()
	return tls.Client(j.raw(), config)
}

// stranger is TLS settings of one without a certificate who believes anybody.
func stranger() *tls.Config {
	c := baseTLS()
	c.InsecureSkipVerify = true
	return c
}

// answer says hello and returns the refusal.
func (j *job) answer(c net.Conn, h hello) error {
	j.t.Helper()
	h.Protocol, h.Version = Protocol, "1.0"
	_, err := exchangeHello(c, &frames{from: c}, h)
	return err
}

func TestStrangers(t *testing.T) {
	j := newJob(t, Config{})
	t.Run("plain TCP", func(t *testing.T) {
		c := j.raw()
		io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
		got, _ := io.ReadAll(c)
		if string(got) != advice {
			t.Errorf("a browser is told %q", got)
		}
	})
	t.Run("data without TLS", func(t *testing.T) {
		c := j.raw()
		io.WriteString(c, plainMagic)
		if got, _ := io.ReadAll(c); string(got) != advice {
			t.Errorf("it is told %q, though data is encrypted here", got)
		}
	})
	t.Run("an authority of its own", func(t *testing.T) {
		foreign, err := newAuthority()
		if err != nil {
			t.Fatal(err)
		}
		public, key, _ := ed25519.GenerateKey(nil)
		certificate, err := foreign.certify("b", public)
		if err != nil {
			t.Fatal(err)
		}
		_, config, err := foreign.configTLS(certificate, key)
		if err != nil {
			t.Fatal(err)
		}
		says(t, explain(j.secure(config).Handshake()), "certificate") // it does not believe a
		config.InsecureSkipVerify = true
		says(t, j.answer(j.secure(config), hello{Want: wantLink}),
			"does not believe this one's certificate", "join with a token")
	})
	t.Run("TLS 1.2", func(t *testing.T) {
		config := stranger()
		config.MinVersion, config.MaxVersion = 0, tls.VersionTLS12
		says(t, j.secure(config).Handshake(), "version")
	})
	for _, want := range []string{wantLink, wantData, wantAgents, "", "the crown"} {
		t.Run("no certificate, wants "+want, func(t *testing.T) {
			says(t, j.answer(j.secure(stranger()), hello{Want: want, Job: "digits"}),
				"no member of this job", "join it with a token")
		})
	}
	t.Run("another protocol", func(t *testing.T) {
		_, err := j.hold(hello{Protocol: Protocol + 1, Want: wantJoin})
		says(t, err, "a refused", "link protocol", fmt.Sprint(Protocol), fmt.Sprint(Protocol+1),
			"use the same version")
	})
	t.Run("no JSON", func(t *testing.T) {
		c := j.secure(stranger())
		c.Write(append(appendHead(nil, kindHello, 3), "{]}"...))
		k, body, err := (&frames{from: c}).next(kindRefusal)
		if err != nil || k != kindRefusal || !json.Valid(body) {
			t.Errorf("answered with kind %d, %q, %v", k, body, err)
		}
	})
	j.unhurt()
}

// hold says hello as somebody who holds a token of the job.
func (j *job) hold(h hello) (welcome, error) {
	j.t.Helper()
	tok, err := parseToken(j.a.Token(time.Minute))
	if err != nil {
		j.t.Fatal(err)
	}
	c := j.secure(stranger())
	if err := c.Handshake(); err != nil {
		j.t.Fatal(err)
	}
	if h.Proof, err = tok.proof(c.ConnectionState()); err != nil {
		j.t.Fatal(err)
	}
	h.Expires = tok.expires.Unix()
	return exchangeHello(c, &frames{from: c}, h)
}

// TestStrangersLearnNothing: who has no token is told neither the name of the job nor that of the
// host, nor the version, whatever it asks and whatever it can see of TLS.
func TestStrangersLearnNothing(t *testing.T) {
	config := Config{Job: "secret-job", Name: "secret-host", Version: "9.8.7-secret",
		Listen: "127.0.0.1:0"}
	a, err := Create(config, fabrictest.NewRecorder(t))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	j := &job{t: t, a: a}
	keyless := make([]byte, 32)
	for _, h := range []hello{
		{Protocol: Protocol, Version: "1.0", Want: wantLink, Job: "digits"},
		{Protocol: Protocol, Version: "1.0", Want: wantData, Job: "digits", Ticket: keyless},
		{Protocol: Protocol, Version: "1.0", Want: wantAgents},
		{Protocol: Protocol, Version: "1.0", Want: wantJoin, Proof: keyless, Name: "c"},
		{Protocol: Protocol + 1, Version: "1.0", Want: wantJoin, Proof: keyless},
		{Protocol: Protocol, Version: config.Version, Want: wantJoin, Job: "digits"},
	} {
		c := j.secure(stranger())
		if err := writeJSON(c, kindHello, h); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		if len(answer) == 0 {
			t.Errorf("%+v is not answered", h)
		}
		for _, shown := range c.ConnectionState().PeerCertificates {
			answer = append(answer, shown.Raw...)
		}
		if bytes.Contains(answer, []byte("secret")) {
			t.Errorf("%+v is told %q", h, answer)
		}
	}
}

// TestLinkWithAnother: who dials the address of one agent and means another is told who is there.
func TestLinkWithAnother(t *testing.T) {
	j := newJob(t, Config{})
	says(t, j.answer(j.secure(j.b.client), hello{Want: wantLink, Job: "digits", To: "c"}),
		"a refused", "a listens here, and not c")
	j.unhurt()
}

// TestNamesOfHosts: names that a shell, a terminal or a file system takes for something else are
// none for hosts, whoever says them.
func TestNamesOfHosts(t *testing.T) {
	j := newJob(t, Config{})
	for _, name := range []fabric.Host{"", ".", "..", "-rf", "--help", "a b", "a/b", "a\nb",
		"\x1b[31m", ".hidden", "_", fabric.Host(strings.Repeat("a", 65))} {
		says(t, CheckName(name), "cannot be the name of a host", "letter or digit")
		public, key, _ := ed25519.GenerateKey(nil)
		_, err := j.hold(hello{Protocol: Protocol, Version: "1.0", Want: wantJoin, Name: name,
			Key: public})
		says(t, err, "cannot be the name of a host")
		certificate, err := j.a.authority.certify(name, public)
		if err != nil {
			t.Fatal(err)
		}
		_, config, err := j.a.authority.configTLS(certificate, key)
		if err != nil {
			t.Fatal(err)
		}
		err = j.answer(j.secure(config), hello{Want: wantLink, Job: "digits", To: "a"})
		if name == "" {
			says(t, err, "no member of this job")
		} else {
			says(t, err, "cannot be the name of a host")
		}
	}
	for _, name := range []fabric.Host{"a", "7", "host-1.example.org", "A_b"} {
		if err := CheckName(name); err != nil {
			t.Error(err)
		}
	}
	j.unhurt()
}

// TestProofIsBound: the proof of a token that an attacker gets to see is worth nothing on another
// connection.
func TestProofIsBound(t *testing.T) {
	j := newJob(t, Config{})
	tok, err := parseToken(j.a.Token(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	proof := func(c *tls.Conn) []byte {
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		p, err := tok.proof(c.ConnectionState())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	public, _, _ := ed25519.GenerateKey(nil)
	one, two := j.secure(stranger()), j.secure(stranger())
	stolen := proof(one)
	proof(two)
	h := hello{Want: wantJoin, Name: "thief", Key: public, Expires: tok.expires.Unix(),
		Proof: stolen}
	says(t, j.answer(two, h), "not one of this job")
	if err := j.answer(one, h); err != nil {
		t.Errorf("on its own connection the proof is refused: %v", err)
	}
	h.Expires += 3600 // the secret of a token is for its expiry only
	three := j.secure(stranger())
	h.Proof = proof(three)
	says(t, j.answer(three, h), "not one of this job")
}

// TestGarbage writes what is no frame, with and without being a member.
func TestGarbage(t *testing.T) {
	j := newJob(t, Config{})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	noise := make([]byte, 100_000)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	for name, bytes := range map[string][]byte{
		"noise":               noise,
		"a frame cut short":   append(appendHead(nil, kindHello, 1000), noise[:999]...),
		"half a head":         {1, 2, 3},
		"4 GiB":               {0xff, 0xff, 0xff, 0xff, byte(kindHello), 0, 0, 0},
		"a hello of 16 KiB+1": appendHead(nil, kindHello, 16<<10+1),
		"a message at once":   append(appendHead(nil, kindMessage, 1), 0),
		"a piece at once":     appendPiece(nil, fabric.Piece{Length: 5}),
		"kind 0":              make([]byte, 8),
		"a hello with a tail": append(appendHead(nil, kindHello, 2), "{}and more"...),
		"deeply nested JSON": append(appendHead(nil, kindHello, 16<<10),
			strings.Repeat("[", 16<<10)...),
		"a list, not an object": append(appendHead(nil, kindHello, 2), "[]"...),
	} {
		for _, config := range []*tls.Config{stranger(), j.b.client} {
			c := j.secure(config)
			c.Write(bytes)
			c.CloseWrite()
			// it answers or hangs up, and does not wait
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Logf("%s: %v", name, err)
			}
			c.Close()
		}
	}
	j.unhurt()
}

// TestMadMember: an agent that is linked and then writes nonsense loses its own links, and the
// others nothing.
func TestMadMember(t *testing.T) {
	for name, nonsense := range map[string]func(l *link){
		"a frame too long": func(l *link) {
			l.control.Write(appendHead(nil, kind(0xff), 1<<30))
		},
		"hello again": func(l *link) { l.send(kindHello, []byte("{}")) },
		"a piece among the messages": func(l *link) {
			l.control.Write(appendPiece(nil, fabric.Piece{}))
		},
		"a message among the pieces": func(l *link) {
			l.data[0].Write(appendHead(make([]byte, 0, 64), kindMessage, 24))
			l.data[0].Write(make([]byte, 24))
		},
		"a piece over the limit": func(l *link) {
			l.data[0].Write(appendPiece(nil, fabric.Piece{Length: fabric.MaxPiece + 1}))
		},
		"a piece beyond every memory": func(l *link) {
			l.data[0].Write(appendPiece(nil, fabric.Piece{Offset: 1<<64 - 1, Length: 2}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, Config{})
			atC := fabrictest.NewRecorder(t)
			c := j.join(j.config(), atC)
			j.atA.WaitUp("c")
			l := c.link("a")
			nonsense(l)
			for _, s := range l.streams() {
				s.raw.Flush()
			}
			says(t, j.atA.WaitDown("c"), "no frame of shoal's link protocol")
			// it is told what it did
			says(t, atC.WaitDown("a"), "no frame of shoal's link protocol")
			j.unhurt()
			c.Send("b", []byte("and we are linked still"))
			j.atB.WaitMessages("c", 1)
		})
	}
}

// TestTakenName: whoever has the key of the authority can write any name into a certificate; a name
// has one owner.
func TestTakenName(t *testing.T) {
	j := newJob(t, Config{})
	public, key, _ := ed25519.GenerateKey(nil)
	for _, name := range []fabric.Host{"a", "b"} {
		certificate, err := j.a.authority.certify(name, public)
		if err != nil {
			t.Fatal(err)
		}
		_, config, err := j.a.authority.configTLS(certificate, key)
		if err != nil {
			t.Fatal(err)
		}
		says(t, j.answer(j.secure(config), hello{Want: wantLink, Job: "digits", To: "a"}),
			"belongs to another agent", "join again")
	}
	says(t, j.answer(j.secure(j.b.client), hello{Want: wantLink, Job: "digits", To: "a"}),
		"there is a link with b")
	says(t, j.answer(j.secure(j.b.client), hello{Want: wantLink, Job: "letters"}),
		`this is job "digits" and not "letters"`)
	j.unhurt()
	b := j.b
	b.Drop("a", errors.New("enough"))
	j.atA.WaitDown("b")
	says(t, j.answer(j.secure(b.client), hello{Want: wantLink, Job: "digits", To: "a"}), "was lost",
		"join again as a new host")
}

// TestTickets: a stream of data needs a ticket of a link that is being opened, once.
func TestTickets(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprint("plain ", plain), func(t *testing.T) {
			j := newJob(t, Config{PlainData: plain})
			dial := func() net.Conn {
				if plain {
					c := j.raw()
					io.WriteString(c, plainMagic)
					return c
				}
				return j.secure(j.b.client)
			}
			for _, ticket := range [][]byte{nil, make([]byte, 32)} {
				says(t, j.answer(dial(), hello{Want: wantData, Job: "digits", Ticket: ticket}),
					"belongs to no link")
			}
			if plain {
				says(t, j.answer(dial(), hello{Want: wantLink, Job: "digits"}), "no member")
				says(t, j.answer(dial(), hello{Want: wantJoin, Job: "digits"}), "no member")
			}
			// A certificate of another agent does not help with a ticket that is good.
			j.a.mu.Lock()
			j.a.tickets["good"] = &opening{peer: identity{"x", "y"}, index: map[string]int{},
				came: make(chan arrival, 1)}
			j.a.mu.Unlock()
			if !plain {
				says(t, j.answer(dial(),
					hello{Want: wantData, Job: "digits", Ticket: []byte("good")}),
					"belongs to no link")
			}
			j.unhurt()
		})
	}
}

// TestFlood: connections that say nothing are bounded in number, and keep nobody out.
func TestFlood(t *testing.T) {
	j := newJob(t, Config{})
	first := j.raw()
	for range maxPending + 10 {
		j.raw()
	}
	if n, err := first.Read(make([]byte, 1)); err == nil {
		t.Errorf("the oldest of too many got %d bytes", n)
	}
	j.join(j.config(), fabrictest.NewRecorder(t))
	j.unhurt()
}

// answering listens and treats all who come in the same way.
func answering(t *testing.T, f func(net.Conn)) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l, f)
	return l.Addr().String()
}
