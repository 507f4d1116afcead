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

// job is two agents that are linked, and what they see. The goroutine of the test calls its
// methods, which fail t where something goes wrong that should not.
type job struct {
	t        *testing.T
	a, b     *Network
	atA, atB *fabrictest.Recorder // the handlers of a and b
	log      *logged              // what all agents log
	said     int                  // how often checkUnhurt was called
}

// logged is a log that a test can read while agents write it.
type logged struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write implements io.Writer; any goroutine may call it.
func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns what was logged so far.
func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newJob starts a job with the agents a and b, which are linked, and closed when the test ends. Of
// the config it keeps what it does not set itself, such as PlainData. What goes wrong fails the
// test.
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
	j.checkUnhurt()
	return j
}

// join has another agent join through a, with a good token, or fails the test; the agent is closed
// when the test ends.
func (j *job) join(config Config, h fabric.Handler) *Network {
	j.t.Helper()
	m, err := Join(j.t.Context(), j.a.Addr(), j.a.Token(time.Minute), config, h)
	if err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(func() { m.Close() })
	return m
}

// newcomerConfig returns the config of an agent named c, of the version of the job, at any port.
func (j *job) newcomerConfig() Config {
	return Config{Name: "c", Version: "1.0", Listen: "127.0.0.1:0"}
}

// checkUnhurt fails the test unless a and b have their link still, and messages and pieces pass.
func (j *job) checkUnhurt() {
	j.t.Helper()
	j.said++
	j.a.Send("b", []byte("still there?"))
	j.b.SendPiece("a", fabric.Piece{Transfer: uint64(j.said), Length: 4}, []byte("yes!"))
	j.atB.WaitMessages("a", j.said)
	j.atA.WaitArrived("b", j.said)
}

// wantError fails the test if there is no error, or if its text lacks one of the words.
func wantError(t *testing.T, err error, words ...string) {
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

// dialRaw connects with a, or fails the test, and says nothing; the connection is closed when the
// test ends.
func (j *job) dialRaw() net.Conn {
	j.t.Helper()
	c, err := net.Dial("tcp", j.a.Addr())
	if err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(func() { c.Close() })
	return c
}

// dialTLS connects with a under TLS with these settings, before the handshake.
func (j *job) dialTLS(config *tls.Config) *tls.Conn {
	j.t.Helper()
	return tls.Client(j.dialRaw(), config)
}

// strangerTLS returns the TLS settings of one without a certificate who believes anybody.
func strangerTLS() *tls.Config {
	c := baseTLS()
	c.InsecureSkipVerify = true
	return c
}

// sayHello says hello on a connection, with protocol and version as they are here, waits for the
// answer, and returns the refusal; nil = the answer is a welcome.
func (j *job) sayHello(c net.Conn, h hello) error {
	j.t.Helper()
	h.Protocol, h.Version = Protocol, "1.0"
	_, err := exchangeHello(c, &frames{from: c}, h)
	return err
}

// TestStrangers: who has neither a certificate nor a token is refused whatever it asks for, and
// hurts nobody.
func TestStrangers(t *testing.T) {
	j := newJob(t, Config{})
	t.Run("plain TCP", func(t *testing.T) {
		c := j.dialRaw()
		io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
		got, _ := io.ReadAll(c)
		if string(got) != advice {
			t.Errorf("a browser is told %q", got)
		}
	})
	t.Run("data without TLS", func(t *testing.T) {
		c := j.dialRaw()
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
		_, config, err := foreign.tlsConfigs(certificate, key)
		if err != nil {
			t.Fatal(err)
		}
		// it does not believe a
		wantError(t, explainConnError(j.dialTLS(config).Handshake()), "certificate")
		config.InsecureSkipVerify = true
		wantError(t, j.sayHello(j.dialTLS(config), hello{Want: wantLink}),
			"does not believe this one's certificate", "join with a token")
	})
	t.Run("TLS 1.2", func(t *testing.T) {
		config := strangerTLS()
		config.MinVersion, config.MaxVersion = 0, tls.VersionTLS12
		wantError(t, j.dialTLS(config).Handshake(), "version")
	})
	for _, want := range []string{wantLink, wantData, wantAgents, "", "the crown"} {
		t.Run("no certificate, wants "+want, func(t *testing.T) {
			wantError(t, j.sayHello(j.dialTLS(strangerTLS()), hello{Want: want, Job: "digits"}),
				"no member of this job", "join it with a token")
		})
	}
	t.Run("another protocol", func(t *testing.T) {
		_, err := j.helloWithToken(hello{Protocol: Protocol + 1, Want: wantJoin})
		wantError(t, err, "a refused", "link protocol", fmt.Sprint(Protocol),
			fmt.Sprint(Protocol+1),
			"use the same version")
	})
	t.Run("no JSON", func(t *testing.T) {
		c := j.dialTLS(strangerTLS())
		c.Write(append(appendHead(nil, kindHello, 3), "{]}"...))
		k, body, err := (&frames{from: c}).nextFrame(kindRefusal)
		if err != nil || k != kindRefusal || !json.Valid(body) {
			t.Errorf("answered with kind %d, %q, %v", k, body, err)
		}
	})
	j.checkUnhurt()
}

// helloWithToken says hello to a, over a connection of its own, as somebody who holds a token of
// the job, and returns the answer. It fails the test only where no answer can come.
func (j *job) helloWithToken(h hello) (welcome, error) {
	j.t.Helper()
	tok, err := parseToken(j.a.Token(time.Minute))
	if err != nil {
		j.t.Fatal(err)
	}
	c := j.dialTLS(strangerTLS())
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
		c := j.dialTLS(strangerTLS())
		if err := writeJSONFrame(c, kindHello, h); err != nil {
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
	wantError(t, j.sayHello(j.dialTLS(j.b.client), hello{Want: wantLink, Job: "digits", To: "c"}),
		"a refused", "a listens here, and not c")
	j.checkUnhurt()
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
	one, two := j.dialTLS(strangerTLS()), j.dialTLS(strangerTLS())
	stolen := proof(one)
	proof(two)
	h := hello{Want: wantJoin, Name: "thief", Key: public, Expires: tok.expires.Unix(),
		Proof: stolen}
	wantError(t, j.sayHello(two, h), "not one of this job")
	if err := j.sayHello(one, h); err != nil {
		t.Errorf("on its own connection the proof is refused: %v", err)
	}
	h.Expires += 3600 // the secret of a token is for its expiry only
	three := j.dialTLS(strangerTLS())
	h.Proof = proof(three)
	wantError(t, j.sayHello(three, h), "not one of this job")
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
		for _, config := range []*tls.Config{strangerTLS(), j.b.client} {
			c := j.dialTLS(config)
			c.Write(bytes)
			c.CloseWrite()
			// it answers or hangs up, and does not wait
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Logf("%s: %v", name, err)
			}
			c.Close()
		}
	}
	j.checkUnhurt()
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
			c := j.join(j.newcomerConfig(), atC)
			j.atA.WaitUp("c")
			l := c.link("a")
			nonsense(l)
			for _, s := range l.streams() {
				s.raw.Flush()
			}
			wantError(t, j.atA.WaitDown("c"), "no frame of shoal's link protocol")
			// it is told what it did
			wantError(t, atC.WaitDown("a"), "no frame of shoal's link protocol")
			j.checkUnhurt()
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
		_, config, err := j.a.authority.tlsConfigs(certificate, key)
		if err != nil {
			t.Fatal(err)
		}
		wantError(t, j.sayHello(j.dialTLS(config), hello{Want: wantLink, Job: "digits", To: "a"}),
			"belongs to another agent", "join again")
	}
	wantError(t, j.sayHello(j.dialTLS(j.b.client), hello{Want: wantLink, Job: "digits", To: "a"}),
		"there is a link with b")
	wantError(t, j.sayHello(j.dialTLS(j.b.client), hello{Want: wantLink, Job: "letters"}),
		`this is job "digits" and not "letters"`)
	j.checkUnhurt()
	b := j.b
	b.Drop("a", errors.New("enough"))
	j.atA.WaitDown("b")
	wantError(t, j.sayHello(j.dialTLS(b.client), hello{Want: wantLink, Job: "digits", To: "a"}),
		"was lost",
		"join again as a new host")
}

// TestTickets: a stream of data needs a ticket of a link that is being opened, once.
func TestTickets(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprint("plain ", plain), func(t *testing.T) {
			j := newJob(t, Config{PlainData: plain})
			dial := func() net.Conn {
				if plain {
					c := j.dialRaw()
					io.WriteString(c, plainMagic)
					return c
				}
				return j.dialTLS(j.b.client)
			}
			for _, ticket := range [][]byte{nil, make([]byte, 32)} {
				wantError(t, j.sayHello(dial(),
					hello{Want: wantData, Job: "digits", Ticket: ticket}),
					"belongs to no link")
			}
			if plain {
				wantError(t, j.sayHello(dial(), hello{Want: wantLink, Job: "digits"}), "no member")
				wantError(t, j.sayHello(dial(), hello{Want: wantJoin, Job: "digits"}), "no member")
			}
			// A certificate of another agent does not help with a ticket that is good.
			j.a.mu.Lock()
			j.a.tickets["good"] = &opening{peer: identity{"x", "y"}, index: map[string]int{},
				came: make(chan arrival, 1)}
			j.a.mu.Unlock()
			if !plain {
				wantError(t, j.sayHello(dial(),
					hello{Want: wantData, Job: "digits", Ticket: []byte("good")}),
					"belongs to no link")
			}
			o := &opening{peer: identity{"b", j.b.self.key}, index: map[string]int{"once": 0},
				came: make(chan arrival, fabric.MaxStreams)}
			j.a.mu.Lock()
			j.a.tickets["once"] = o
			j.a.mu.Unlock()
			once := hello{Want: wantData, Job: "digits", Ticket: []byte("once"), Protocol: Protocol,
				Version: "1.0"}
			if err := writeJSONFrame(dial(), kindHello, once); err != nil {
				t.Fatal(err)
			}
			first := <-o.came
			defer first.stream.abandon()
			j.a.mu.Lock()
			if _, is := j.a.tickets["once"]; is {
				t.Error("a ticket is good twice")
			}
			j.a.mu.Unlock()
			j.checkUnhurt()
		})
	}
}

// listenAndServe listens until the test ends, and calls f for each connection on a goroutine of its
// own; f must return when its connection is closed, at the latest when the test ends.
func listenAndServe(t *testing.T, f func(net.Conn)) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveUntilEnd(t, l, f)
	return l.Addr().String()
}
