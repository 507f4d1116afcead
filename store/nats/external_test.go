package nats

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/storetest"
)

// elsewhere is a NATS server on a loopback socket. It keeps its port and its folder while it is
// stopped.
type elsewhere struct {
	options server.Options
	running *server.Server // the newest one, which Stop has ended or will end
	servers Servers        // how clients reach it
}

// startElsewhere starts a server that runs until the test ends; change may set options, nil = none.
// A failure ends the test.
func startElsewhere(t testing.TB, change func(*server.Options)) *elsewhere {
	t.Helper()
	e := &elsewhere{options: server.Options{
		ServerName: "elsewhere", Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true,
		NoLog:     true,
		JetStream: true, StoreDir: t.TempDir(), SyncAlways: true,
	}}
	if change != nil {
		change(&e.options)
	}
	e.Start(t)
	t.Cleanup(func() { e.Stop(t) })
	e.options.Port = e.running.Addr().(*net.TCPAddr).Port
	e.servers.URL = fmt.Sprintf("nats://127.0.0.1:%d", e.options.Port)
	return e
}

// Open implements storetest.Server: it returns a new client.
func (e *elsewhere) Open(t testing.TB) store.Store {
	t.Helper()
	s, err := Connect(t.Context(), e.servers)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Start implements storetest.Server: it starts a server on the folder, and waits until it is ready.
func (e *elsewhere) Start(t testing.TB) {
	t.Helper()
	options := e.options // the server writes into it
	s, err := server.NewServer(&options)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the NATS server does not start")
	}
	e.running = s
}

// Stop implements storetest.Server: it ends the server, and keeps its folder.
func (e *elsewhere) Stop(testing.TB) {
	e.running.Shutdown()
	e.running.WaitForShutdown()
}

// TestExternal runs the suite of package storetest on a server elsewhere.
func TestExternal(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Server { return startElsewhere(t, nil) })
}

// checkRefused fails the test unless Connect fails, with an error that has all these words.
func checkRefused(t *testing.T, s Servers, words ...string) {
	t.Helper()
	got, err := Connect(t.Context(), s)
	if err == nil {
		got.Close()
		t.Fatal("connected")
	}
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("not of the kind ErrUnavailable: %v", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// checkWorks fails the test unless a store on these servers, which is empty, can be read, and does
// not show a password that is "secret".
func checkWorks(t *testing.T, s Servers) {
	t.Helper()
	c, err := Connect(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if strings.Contains(c.String(), "secret") {
		t.Errorf("%q tells the password", c)
	}
	if _, err := c.Get(t.Context(), "a"); !errors.Is(err, store.ErrNotFound) {
		t.Error(err)
	}
}

// TestNobodyThere: where no server runs, the error names the address and says to start one.
func TestNobodyThere(t *testing.T) {
	e := startElsewhere(t, nil)
	e.Stop(t)
	checkRefused(t, e.servers, e.servers.URL, "start it")
	e.Start(t)
}

// TestPassword: only who has the password gets in, and no message shows it.
func TestPassword(t *testing.T) {
	e := startElsewhere(t, func(o *server.Options) { o.Username, o.Password = "shoal", "secret" })
	address := strings.TrimPrefix(e.servers.URL, "nats://")
	checkRefused(t, e.servers, "Authorization Violation", "credentials")
	checkWorks(t, Servers{URL: "nats://shoal:secret@" + address})
	// the first is down
	checkWorks(t, Servers{URL: "nats://127.0.0.1:1,nats://shoal:secret@" + address})
}

// TestPasswordThatCannotBeRead: an address that cannot be read because of its password is refused,
// with what to write, and without the password.
func TestPasswordThatCannotBeRead(t *testing.T) {
	for _, password := range []string{"sec%ret", "sec/ret", "sec#ret", "sec ret"} {
		s := Servers{URL: "nats://shoal:" + password + "@127.0.0.1:1"}
		checkRefused(t, s, "%25 for a %")
		if _, err := Connect(t.Context(), s); strings.Contains(err.Error(), "sec") {
			t.Errorf("%q tells the password", err)
		}
	}
}

// TestToken: only who has the token of the server gets in.
func TestToken(t *testing.T) {
	e := startElsewhere(t, func(o *server.Options) { o.Authorization = "secret" })
	checkRefused(t, e.servers, "Authorization Violation")
	checkWorks(t, Servers{URL: strings.Replace(e.servers.URL, "//", "//secret@", 1)})
}

// TestCredentialsFile: only who has the file of credentials gets in.
func TestCredentialsFile(t *testing.T) {
	e := startElsewhere(t, func(o *server.Options) {
		if err := o.ProcessConfigFile("testdata/operator.conf"); err != nil {
			t.Fatal(err)
		}
	})
	checkRefused(t, e.servers, "Authorization Violation", "credentials")
	checkRefused(t, Servers{URL: e.servers.URL,
		Credentials: filepath.Join(t.TempDir(), "none.creds")},
		"none.creds")
	checkWorks(t, Servers{URL: e.servers.URL, Credentials: "testdata/user.creds"})
}

// TestNoJetStream: the error about a server without JetStream says how to start it with it.
func TestNoJetStream(t *testing.T) {
	e := startElsewhere(t, func(o *server.Options) { o.JetStream = false })
	checkRefused(t, e.servers, "JetStream does not answer", "nats-server -js")
}

// TestManyMakeTheBucket: agents that start together find one bucket.
func TestManyMakeTheBucket(t *testing.T) {
	e := startElsewhere(t, nil)
	g := group.New(t.Context())
	for i := range 8 {
		g.Go("agent", func(ctx context.Context) error {
			s, err := Connect(ctx, e.servers)
			if err != nil {
				return err
			}
			defer s.Close()
			_, err = s.Create(ctx, fmt.Sprintf("agent.%d", i), nil)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	s := e.Open(t)
	defer s.Close()
	if keys, err := s.Keys(t.Context(), "agent"); err != nil || len(keys) != 8 {
		t.Errorf("%v (%v)", keys, err)
	}
}

// TestUnfitBucket: a bucket that forgets, or lets any replica answer, is refused, with the reason.
func TestUnfitBucket(t *testing.T) {
	for _, test := range []struct {
		change func(*jetstream.StreamConfig)
		want   string
	}{
		{func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, "forgets what is older than 1h"},
		{func(c *jetstream.StreamConfig) { c.AllowDirect = true }, "may be old"},
	} {
		e := startElsewhere(t, nil)
		s := e.Open(t).(*external)
		defer s.Close()
		c := streamConfig(1)
		test.change(&c)
		if _, err := s.session.js.UpdateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		checkRefused(t, e.servers, test.want)
	}
}

// TestTakenOutByHand: what a person takes out of the bucket with NATS's own tools is gone.
func TestTakenOutByHand(t *testing.T) {
	s := startElsewhere(t, nil).Open(t).(*external)
	defer s.Close()
	ctx, b := t.Context(), s.session
	for name, takeOut := range map[string]func(key string) error{
		"nats kv del":   func(key string) error { return b.kv.Delete(ctx, key) },
		"nats kv purge": func(key string) error { return b.kv.Purge(ctx, key) },
		"nats stream purge": func(key string) error {
			return b.stream.Purge(ctx, jetstream.WithPurgeSubject(subjects+key))
		},
	} {
		old, err := s.Create(ctx, "a", []byte("one"))
		if err != nil {
			t.Fatal(err)
		}
		if err := takeOut("a"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(ctx, "a"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s: read with %v", name, err)
		}
		if _, err := s.Update(ctx, "a", nil, old); !errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: updated with %v", name, err)
		}
		if r, err := s.Create(ctx, "a", []byte("two")); err != nil || r <= old {
			t.Errorf("%s: created with revision %d after %d (%v)", name, r, old, err)
		}
		if err := b.kv.Purge(ctx, "a"); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := s.Create(ctx, "generation.digits.k7.1", nil); err != nil {
			t.Fatal(err)
		}
		if err := b.stream.Purge(ctx,
			jetstream.WithPurgeSubject(subjects+"generation.digits.>")); err != nil {
			t.Fatal(err)
		}
		if keys, err := s.Keys(ctx, "generation.digits"); err != nil || len(keys) > 0 {
			t.Errorf("%v (%v) is left of what was purged", keys, err)
		}
	}
}

// TestFullBucket fills a bucket: what was acknowledged stays, and the error says what to do.
func TestFullBucket(t *testing.T) {
	e := startElsewhere(t, nil)
	s := e.Open(t).(*external)
	defer s.Close()
	c := streamConfig(1)
	c.MaxBytes = 2000
	if _, err := s.session.js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	var kept []string
	for i := range 20 {
		key := fmt.Sprintf("k.%d", i)
		if _, err := s.Create(t.Context(), key, make([]byte, 200)); err == nil {
			kept = append(kept, key)
		} else if !errors.Is(err, store.ErrUnavailable) ||
			!strings.Contains(err.Error(), "no room left") {
			t.Fatal(err)
		}
	}
	if len(kept) < 2 || len(kept) == 20 {
		t.Fatalf("%d of 20 values were taken", len(kept))
	}
	for _, key := range kept {
		if _, err := s.Get(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
}

// trusted is the certificate that the system trusts in this process, which reads SSL_CERT_FILE
// once.
var trusted = sync.OnceValues(selfSigned)

// TestTLS: servers show a certificate of an authority that the system trusts.
func TestTLS(t *testing.T) {
	known, err := trusted()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "authority.pem")
	if err := os.WriteFile(file,
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: known.Certificate[0]}),
		0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", file)
	stranger, err := selfSigned()
	if err != nil {
		t.Fatal(err)
	}
	at := func(certificate tls.Certificate) Servers {
		e := startElsewhere(t, func(o *server.Options) {
			o.TLS, o.TLSConfig = true,
				&tls.Config{Certificates: []tls.Certificate{certificate},
					MinVersion: tls.VersionTLS13}
		})
		return Servers{URL: strings.Replace(e.servers.URL, "nats:", "tls:", 1)}
	}
	checkWorks(t, at(known))
	checkRefused(t, at(stranger), "there is no NATS server", "certificate")
	// it speaks no TLS
	checkRefused(t, Servers{
		URL: strings.Replace(startElsewhere(t, nil).servers.URL, "nats:", "tls:", 1)},
		"there is no NATS server")
}

// selfSigned returns a new certificate for 127.0.0.1 that is its own authority, for an hour.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// doorkeeper decides whom a server lets in. Goroutines of the server call its method.
type doorkeeper struct {
	refused chan struct{} // gets an element for each client that is refused, up to its capacity
	open    chan struct{} // closed = all are let in
}

// Check implements server.Authentication.
func (d doorkeeper) Check(server.ClientAuthentication) bool {
	select {
	case <-d.open:
		return true
	default:
	}
	select {
	case d.refused <- struct{}{}:
	default:
	}
	return false
}

// TestRefusedForAWhile: a server that comes back, and does not know its users for some time, is
// asked until it does.
func TestRefusedForAWhile(t *testing.T) {
	e := startElsewhere(t, nil)
	s := e.Open(t)
	defer s.Close()
	e.Stop(t)
	door := doorkeeper{make(chan struct{}, 4), make(chan struct{})}
	e.options.CustomClientAuthentication = door
	e.Start(t)
	for range cap(door.refused) {
		select {
		case <-door.refused:
		case <-time.After(time.Minute):
			t.Fatal("it does not ask again")
		}
	}
	close(door.open)
	for {
		_, err := s.Create(t.Context(), "a", nil)
		if err == nil {
			return
		}
		if !errors.Is(err, store.ErrUnavailable) || t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}
