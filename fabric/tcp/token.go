package tcp

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
)

// The tokens with which newcomers join. Nothing changes a token or an authority once it is made,
// and nothing here does I/O, so any goroutine may call the functions and methods.

// token lets its holder into a job until it expires: it names the job's authority, so that the
// newcomer knows whom to believe, and holds a secret that every agent can compute from the
// authority's key, so that any of them can let the newcomer in.
type token struct {
	authority [sha256.Size]byte // SHA-256 of the authority's certificate
	expires   time.Time         // when it ceases to be good, in whole seconds
	secret    [16]byte          // follows from the authority's key and expires
}

// A token's text is tokenPrefix and, in base64, tokenBytes: the fields, and the first tokenSumBytes
// of their SHA-256, which shows mistakes in typing.
const (
	tokenPrefix   = "shoal1."
	tokenSumBytes = 4
	tokenBytes    = sha256.Size + 8 + 16 + tokenSumBytes
)

// String returns the token in one line without spaces.
func (t token) String() string {
	b := append([]byte(nil), t.authority[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.expires.Unix()))
	b = append(b, t.secret[:]...)
	sum := sha256.Sum256(b)
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(append(b, sum[:tokenSumBytes]...))
}

var errToken = errors.New(
	"this is no join token, or not all of it: it is one line that begins with " + tokenPrefix +
		"; copy it again from the host that made it")

// parseToken reads what String wrote, and refuses everything else.
func parseToken(text string) (t token, err error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(text), tokenPrefix)
	if !ok {
		return t, errToken
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != tokenBytes {
		return t, errToken
	}
	b, given := b[:len(b)-tokenSumBytes], b[len(b)-tokenSumBytes:]
	if sum := sha256.Sum256(b); !bytes.Equal(sum[:tokenSumBytes], given) {
		return t, errToken
	}
	copy(t.authority[:], b)
	t.expires = time.Unix(int64(binary.LittleEndian.Uint64(b[sha256.Size:])), 0)
	copy(t.secret[:], b[sha256.Size+8:])
	return t, nil
}

// CheckToken returns what is wrong with a text that is to be a token; nil = it is one, which need
// not be good for any job.
func CheckToken(text string) error {
	_, err := parseToken(text)
	return err
}

// newToken returns the token that expires at a time, of which whole seconds count.
func (a *authority) newToken(expires time.Time) token {
	t := token{authority: sha256.Sum256(a.certificate.Raw), expires: time.Unix(expires.Unix(), 0)}
	secret, err := hkdf.Key(sha256.New, a.key.Seed(), nil,
		fmt.Sprintf("shoal join token %d", t.expires.Unix()), len(t.secret))
	if err != nil {
		panic(err) // the sizes are constants
	}
	copy(t.secret[:], secret)
	return t
}

// proof returns bytes which show that their maker knows the secret, on this TLS connection and no
// other.
func (t token) proof(state tls.ConnectionState) ([]byte, error) {
	bound, err := state.ExportKeyingMaterial("EXPORTER-shoal-join", nil, sha256.Size)
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, t.secret[:])
	mac.Write(bound)
	return mac.Sum(nil), nil
}

// checkProof returns an error unless a newcomer has proved that it holds the token that expires
// then, and it is good now.
func (a *authority) checkProof(expires time.Time, proof []byte, state tls.ConnectionState,
	now time.Time) error {
	want, err := a.newToken(expires).proof(state)
	if err != nil {
		return err
	}
	if !hmac.Equal(proof, want) {
		return errors.New(
			"the token is not one of this job: make one where the job is led, with shoal token, " +
				"or copy that of the pool again")
	}
	if now.After(expires) {
		return fmt.Errorf("the token expired at %s, and it is %s here: make a new one where the "+
			"job is led, with shoal token, or copy that of the pool again",
			expires.UTC().Format(time.DateTime), now.UTC().Format(time.DateTime))
	}
	return nil
}
