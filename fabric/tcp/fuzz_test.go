package tcp

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/group"
)

// FuzzFrames: any stream gives frames within their bounds and then an error, in memory that what
// came justifies.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendHead(nil, kindBeat, 0))
	f.Add(append(appendHead(nil, kindMessage, 3), "abc"...))
	f.Add(append(appendHead(appendHead(nil, kindReady, 0), kindGoodbye, 5), "done."...))
	f.Add(appendHead(nil, kindMessage, fabric.MaxMessage))
	f.Add(appendHead(nil, kindMessage, fabric.MaxMessage+1))
	f.Add(appendPiece(nil, fabric.Piece{Transfer: 1, Part: 2, Offset: 3, Length: 4}))
	f.Fuzz(func(t *testing.T, stream []byte) {
		from := frames{from: bytes.NewReader(stream)}
		var again []byte
		for {
			k, body, err := from.nextFrame(kindHello, kindWelcome, kindRefusal, kindReady, kindBeat,
				kindMessage, kindGoodbye)
			if len(from.body) > 2*len(stream)+4096 {
				t.Fatalf("%d bytes of memory for a stream of %d", len(from.body), len(stream))
			}
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) &&
					!errors.Is(err, errFrame) {
					t.Fatalf("an error of another kind: %v", err)
				}
				break
			}
			if len(body) > int(maxBody[k]) {
				t.Fatalf("kind %d with %d bytes", k, len(body))
			}
			again = append(appendHead(again, k, len(body)), body...)
		}
		if !bytes.HasPrefix(stream, again) {
			t.Fatal("the frames, written again, are not what was read")
		}
	})
}

// FuzzPiece: what is taken for a piece is one that could have been sent.
func FuzzPiece(f *testing.F) {
	f.Add(appendPiece(nil, fabric.Piece{Transfer: 1, Part: 2, Offset: 3, Length: 4}))
	f.Add(appendPiece(nil, fabric.Piece{Offset: math.MaxUint64, Length: 1}))
	f.Add(appendPiece(nil, fabric.Piece{Length: fabric.MaxPiece}))
	f.Add(appendHead(make([]byte, 0, 32), kindMessage, 24))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headBytes+pieceBytes {
			return
		}
		b = b[:headBytes+pieceBytes]
		p, err := parsePiece(b)
		if err != nil {
			if !errors.Is(err, errFrame) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		if p.Length > fabric.MaxPiece || p.Offset+uint64(p.Length) < p.Offset {
			t.Fatalf("%+v", p)
		}
		if again := appendPiece(nil, p); !bytes.Equal(b, again) {
			t.Fatalf("% x\nwritten again is\n% x", b, again)
		}
	})
}

// FuzzToken: a text is refused, or is the token that it says it is.
func FuzzToken(f *testing.F) {
	f.Add(token{expires: time.Unix(1_900_000_000, 0)}.String())
	f.Add("shoal1.")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := parseToken(text)
		if err != nil {
			return
		}
		if again, err := parseToken(tok.String()); err != nil || again != tok {
			t.Fatalf("%+v\nread again is\n%+v, %v", tok, again, err)
		}
	})
}

// FuzzHello: a member that says anything, and one who is none, get an answer.
func FuzzHello(f *testing.F) {
	a, err := newAuthority()
	if err != nil {
		f.Fatal(err)
	}
	state := serverHandshake(f, a)
	for _, h := range []hello{
		{Protocol: Protocol, Want: wantJoin, Name: "c", Expires: math.MaxInt64,
			Key: make([]byte, 32), Proof: make([]byte, 32)},
		{Protocol: Protocol, Job: "digits", Want: wantLink, Address: "h:1"},
		{Protocol: Protocol, Job: "digits", Want: wantData, Ticket: make([]byte, 32)},
	} {
		b, _ := json.Marshal(h)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > int(maxBody[kindHello]) {
			return
		}
		h, err := readHello(
			&frames{from: bytes.NewReader(append(appendHead(nil, kindHello, len(body)), body...))})
		if err != nil {
			if !errors.Is(err, errFrame) {
				t.Fatal(err)
			}
			return
		}
		for _, err := range []error{h.checkVersion("1.0"),
			h.checkJob(&Config{Job: "digits"}), CheckName(h.Name),
			a.checkProof(time.Unix(h.Expires, 0), h.Proof, state, time.Now())} {
			if err != nil && sanitize(err.Error()) == "" {
				t.Fatal("an error without words")
			}
		}
	})
}

// serverHandshake returns the server's side of a TLS connection that a newcomer has made with an
// agent of a. It waits for the handshake, and fails tb where that fails.
func serverHandshake(tb testing.TB, a *authority) tls.ConnectionState {
	public, key, _ := ed25519.GenerateKey(nil)
	certificate, err := a.certify("a", public)
	if err != nil {
		tb.Fatal(err)
	}
	config, _, err := a.tlsConfigs(certificate, key)
	if err != nil {
		tb.Fatal(err)
	}
	near, far := net.Pipe()
	server, client := tls.Server(near, config), tls.Client(far, newcomerTLS(a.newToken(time.Now())))
	g := group.New(context.Background())
	g.Go("server", server.HandshakeContext)
	g.Go("client", client.HandshakeContext)
	if err := g.Wait(); err != nil {
		tb.Fatal(err)
	}
	return server.ConnectionState()
}

// TestTokens: every token of an authority can be read again, and those of different expiries differ
// in their secrets.
func TestTokens(t *testing.T) {
	a, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		at := func(name string) token {
			return a.newToken(time.Unix(rapid.Int64Range(0, 1e11).Draw(t, name),
				rapid.Int64Range(0, 999_999_999).Draw(t, "ns")))
		}
		one, other := at("one"), at("other")
		if again, err := parseToken("  " + one.String() + "\n"); err != nil || again != one {
			t.Fatalf("%+v\nread again is\n%+v, %v", one, again, err)
		}
		if one.expires != other.expires && one.secret == other.secret {
			t.Fatal("one secret for two expiries")
		}
		text := []byte(one.String())
		i := rapid.IntRange(0, len(text)-1).Draw(t, "mistyped")
		text[i] ^= 1 << rapid.IntRange(0, 6).Draw(t, "bit")
		if wrong, err := parseToken(string(text)); err == nil && wrong != one {
			t.Fatalf("%q is taken for a token", text)
		}
	})
}

// TestSanitize: text from a peer is shown without control characters, and is short.
func TestSanitize(t *testing.T) {
	for text, want := range map[string]string{
		"plain words, schön":               "plain words, schön",
		"\x1b[31mred\x1b[0m\r\n":           "\uFFFD[31mred\uFFFD[0m\uFFFD\uFFFD",
		"not \xff UTF-8":                   "not \uFFFD UTF-8",
		string(make([]byte, 5000)) + "end": "",
	} {
		got := sanitize(text)
		if len(text) < 1000 && got != want || len(got) > 1024 {
			t.Errorf("%q became %q", text, got)
		}
	}
}
