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
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/storetest"
)

// elsewhere is a NATS server on a loopback socket. It keeps its port and its folder while it is stopped.
type elsewhere struct {
	options server.Options
	running *server.Server
	servers Servers
}

// serve starts a server; change may set options.
func serve(t testing.TB, change func(*server.Options)) *elsewhere {
	t.Helper()
	e := &elsewhere{options: server.Options{
		ServerName: "elsewhere", Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
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

func (e *elsewhere) Open(t testing.TB) store.Store {
	t.Helper()
	s, err := Connect(t.Context(), e.servers)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

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

func (e *elsewhere) Stop(testing.TB) {
	e.running.Shutdown()
	e.running.WaitForShutdown()
}

func TestExternal(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Server { return serve(t, nil) })
}

// refused checks that Connect fails, with an error that has all these words.
func refused(t *testing.T, s Servers, words ...string) {
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

func works(t *testing.T, s Servers) {
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

func TestNobodyThere(t *testing.T) {
	e := serve(t, nil)
	e.Stop(t)
	refused(t, e.servers, e.servers.URL, "start it")
	e.Start(t)
}

func TestPassword(t *testing.T) {
	e := serve(t, func(o *server.Options) { o.Username, o.Password = "shoal", "secret" })
	address := strings.TrimPrefix(e.servers.URL, "nats://")
	refused(t, e.servers, "Authorization Violation", "credentials")
	works(t, Servers{URL: "nats://shoal:secret@" + address})
	works(t, Servers{URL: "nats://127.0.0.1:1,nats://shoal:secret@" + address}) // the first is down
}

func TestToken(t *testing.T) {
	e := serve(t, func(o *server.Options) { o.Authorization = "secret" })
	refused(t, e.servers, "Authorization Violation")
	works(t, Servers{URL: strings.Replace(e.servers.URL, "//", "//secret@", 1)})
}

func TestCredentialsFile(t *testing.T) {
	e := serve(t, func(o *server.Options) {
		if err := o.ProcessConfigFile("testdata/operator.conf"); err != nil {
			t.Fatal(err)
		}
	})
	refused(t, e.servers, "Authorization Violation", "credentials")
	refused(t, Servers{URL: e.servers.URL, Credentials: filepath.Join(t.TempDir(), "none.creds")}, "none.creds")
	works(t, Servers{URL: e.servers.URL, Credentials: "testdata/user.creds"})
}

func TestNoJetStream(t *testing.T) {
	e := serve(t, func(o *server.Options) { o.JetStream = false })
	refused(t, e.servers, "JetStream does not answer", "nats-server -js")
}

// TestManyMakeTheBucket: agents that start together find one bucket.
func TestManyMakeTheBucket(t *testing.T) {
	e := serve(t, nil)
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

func TestUnfitBucket(t *testing.T) {
	for _, test := range []struct {
		change func(*jetstream.StreamConfig)
		want   string
	}{
		{func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, "forgets what is older than 1h"},
		{func(c *jetstream.StreamConfig) { c.AllowDirect = true }, "may be old"},
	} {
		e := serve(t, nil)
		s := e.Open(t).(*external)
		defer s.Close()
		c := config(1)
		test.change(&c)
		if _, err := s.bucket.js.UpdateStream(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		refused(t, e.servers, test.want)
	}
}

func TestFullBucket(t *testing.T) {
	e := serve(t, nil)
	s := e.Open(t).(*external)
	defer s.Close()
	c := config(1)
	c.MaxBytes = 2000
	if _, err := s.bucket.js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	var kept []string
	for i := range 20 {
		key := fmt.Sprintf("k.%d", i)
		if _, err := s.Create(t.Context(), key, make([]byte, 200)); err == nil {
			kept = append(kept, key)
		} else if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "no room left") {
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

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	certificate, pool := selfSigned(t, dir)
	e := serve(t, func(o *server.Options) {
		o.TLS, o.TLSVerify = true, true
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13}
	})
	at := func(name string) string { return filepath.Join(dir, name) }
	refused(t, e.servers, "certificate")
	refused(t, Servers{URL: e.servers.URL, Authority: at("certificate.pem")}, "there is no NATS server")
	works(t, Servers{URL: e.servers.URL, Authority: at("certificate.pem"), Certificate: at("certificate.pem"), Key: at("key.pem")})
}

// selfSigned makes a certificate for both ends, and writes it into dir.
func selfSigned(t *testing.T, dir string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificatePEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	for name, text := range map[string][]byte{"certificate.pem": certificatePEM, "key.pem": keyPEM} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := tls.X509KeyPair(certificatePEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificatePEM)
	return pair, pool
}
