package tcp

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric/fabrictest"
)

// TestJoinRefused: who joins with a wrong token, name or version is told what is wrong and what to
// do; no token is logged.
func TestJoinRefused(t *testing.T) {
	j, other := newJob(t, Config{}), newJob(t, Config{})
	good := j.a.Token(time.Minute)
	forged := j.a.authority.newToken(time.Now().Add(time.Hour))
	forged.secret[0] ^= 1
	for _, c := range []struct {
		name, token string
		change      func(*Config)
		says        []string
	}{
		{"no token", "", nil, []string{"no join token", "copy it again"}},
		{"half a token", good[:40], nil, []string{"no join token", "copy it again"}},
		{"a mistyped token", strings.Replace(good, good[20:21], string(good[20]^1), 1), nil,
			[]string{"no join token"}},
		{"a token with a wrong secret", forged.String(), nil,
			[]string{"refused", "not one of this job", "make one"}},
		{"an expired token", j.a.Token(-time.Second), nil,
			[]string{"refused", "expired at", "make a new one"}},
		{"a token of another job", other.a.Token(time.Minute), nil,
			[]string{"belongs to another job than the token", "use a token"}},
		{"another job by name", good, func(c *Config) {
			c.Job = "letters"
		}, []string{"a refused", `this is job "digits" and not "letters"`,
			"use the address and the token"}},
		{"another version", good, func(c *Config) {
			c.Version = "0.9"
		}, []string{"a refused", `"1.0" here and "0.9" there`, "use the same version"}},
		{"a name that is none", good, func(c *Config) {
			c.Name = "a\nb"
		}, []string{"cannot be the name of a host", "use up to 64 letters"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := j.newcomerConfig()
			if c.change != nil {
				c.change(&config)
			}
			_, err := Join(t.Context(), j.a.Addr(), c.token, config, fabrictest.NewRecorder(t))
			wantError(t, err, c.says...)
		})
	}
	j.checkUnhurt()
	j.join(j.newcomerConfig(), fabrictest.NewRecorder(t))
	for _, secret := range []string{good, forged.String()} {
		if strings.Contains(j.log.String(), secret) {
			t.Error("a token is in the log")
		}
	}
}

// TestJoinWithoutAName: who names no job is told why where that is refused, and who names it joins.
func TestJoinWithoutAName(t *testing.T) {
	j := newJob(t, Config{Refuse: "this is no job"})
	config := j.newcomerConfig()
	_, err := Join(t.Context(), j.a.Addr(), j.a.Token(time.Minute), config,
		fabrictest.NewRecorder(t))
	wantError(t, err, "a refused: this is no job")
	config.Job = "digits"
	j.join(config, fabrictest.NewRecorder(t))
}

// TestJoinElsewhere: who joins at an address where no agent listens is told so, whatever is there.
func TestJoinElsewhere(t *testing.T) {
	j := newJob(t, Config{})
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	deaf.Close()
	_, err = Join(t.Context(), deaf.Addr().String(), j.a.Token(time.Minute), j.newcomerConfig(),
		fabrictest.NewRecorder(t))
	wantError(t, err, "cannot join the job at "+deaf.Addr().String(), "refused")

	other := listenAndServe(t, func(c net.Conn) { io.WriteString(c, "220 mail.example ESMTP\r\n") })
	_, err = Join(t.Context(), other, j.a.Token(time.Minute), j.newcomerConfig(),
		fabrictest.NewRecorder(t))
	wantError(t, err, "no agent of shoal", "check the address")

	authority, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	public, key, _ := ed25519.GenerateKey(nil)
	certificate, err := authority.certify("b", public)
	if err != nil {
		t.Fatal(err)
	}
	secure, _, err := authority.tlsConfigs(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	secure.NextProtos = []string{"h2"}
	web := listenAndServe(t, func(c net.Conn) { tls.Server(c, secure).Handshake() })
	_, err = Join(t.Context(), web, j.a.Token(time.Minute), j.newcomerConfig(),
		fabrictest.NewRecorder(t))
	wantError(t, err, "no agent of shoal", "check the address")

	_, err = Join(t.Context(), "nowhere.invalid:7077", j.a.Token(time.Minute), j.newcomerConfig(),
		fabrictest.NewRecorder(t))
	wantError(t, err, "no address is known for nowhere.invalid here", "check the name")

	silent := listenAndServe(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err = Join(ctx, silent, j.a.Token(time.Minute), j.newcomerConfig(),
		fabrictest.NewRecorder(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("joining somebody silent: %v", err)
	}
}

// TestJoinWaits: a newcomer that nobody answers says why, and joins when somebody does. It does not
// wait where it is refused.
func TestJoinWaits(t *testing.T) {
	j := newJob(t, Config{})
	way := newCable(t)
	address := way.address()
	way.listener.Close()
	config, told := j.newcomerConfig(), 0
	config.Unreachable = func(attempts int, why error) {
		told++
		wantError(t, why, "no host of a job or a pool answers there", "connection refused")
		if attempts != told {
			t.Errorf("attempt %d is told as attempt %d", told, attempts)
		}
		if told < 2 {
			return
		}
		var err error
		if way.listener, err = net.Listen("tcp", address); err != nil {
			t.Fatal(err)
		}
		way.leadTo(t, j.a.Addr())
	}
	m, err := Join(t.Context(), address, j.a.Token(time.Minute), config, fabrictest.NewRecorder(t))
	if err != nil || told != 2 {
		t.Fatalf("told %d times that nobody answers, then: %v", told, err)
	}
	m.Close()

	config.Unreachable = func(int, error) { t.Error("waits, though it is refused") }
	for _, token := range []string{"nonsense", j.a.Token(-time.Second)} {
		_, err := Join(t.Context(), j.a.Addr(), token, config, fabrictest.NewRecorder(t))
		wantError(t, err, "token")
	}
	config.Version = "0.9"
	_, err = Join(t.Context(), j.a.Addr(), j.a.Token(time.Minute), config,
		fabrictest.NewRecorder(t))
	wantError(t, err, "use the same version")

	ctx, cancel := context.WithCancel(t.Context())
	config.Unreachable = func(int, error) { cancel() }
	if _, err = Join(ctx, "nowhere.invalid:7077", j.a.Token(time.Minute), config,
		fabrictest.NewRecorder(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted while it waits: %v", err)
	}
}

// TestJoinWaitsForWhoHangsUp: a newcomer joins though what is at the address hangs up at first: in
// the handshake, as an agent that has too many connections, or before that, as a tunnel to a job
// that has not begun. It says why it waits.
func TestJoinWaitsForWhoHangsUp(t *testing.T) {
	j := newJob(t, Config{})
	way := newCable(t)
	var came atomic.Int64
	serveUntilEnd(t, way.listener, func(near net.Conn) {
		switch came.Add(1) {
		case 1:
			near.Read(make([]byte, 1)) // the close is a reset, since not all was read
		case 2:
			near.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, near)
		default:
			way.connect(near, j.a.Addr())
		}
	})
	config, told := j.newcomerConfig(), 0
	config.Unreachable = func(_ int, why error) {
		told++
		wantError(t, why, "it hung up", "is that a host of the job, and running?")
	}
	m, err := Join(t.Context(), way.address(), j.a.Token(time.Minute), config,
		fabrictest.NewRecorder(t))
	if err != nil || told != 2 {
		t.Fatalf("told %d times that nobody answers, then: %v", told, err)
	}
	m.Close()
}
