package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/internal/durable"
)

// The file with the token by which hosts join a job. Commands read and write it on their own
// goroutine, and wait for the disk.

// TokenLife is how long hosts may join with the token that shoal run writes.
const TokenLife = 24 * time.Hour

// CheckToken fails where WriteToken could write no file at path, or would replace one that holds
// something else than a token.
func CheckToken(path string) error {
	switch there, err := os.Lstat(path); {
	case path == "-":
		return Usagef("--token-file -: standard output is for other lines: name a file")
	case err == nil && there.IsDir():
		return Usagef("--token-file %s is a folder: name a file in it", path)
	case err == nil && !there.Mode().IsRegular():
		return Usagef("--token-file %s is no regular file: name another one", path)
	case err == nil && there.Size() > 0 && !holdsToken(path):
		return Usagef("--token-file %s is there, and holds no token: name another file", path)
	}
	return CheckNewFolder("--token-file", filepath.Dir(path))
}

// holdsToken reports whether a file begins as all tokens do, of whichever version; so it does where
// nobody may read it.
func holdsToken(path string) bool {
	const begin = "shoal"
	file, err := os.Open(path)
	if err != nil {
		return true
	}
	defer file.Close()
	text := make([]byte, len(begin))
	_, err = io.ReadFull(file, text)
	return err == nil && string(text) == begin
}

// WriteToken writes a token to a file that only its owner can read, as durable.WriteSecret does.
// It makes the folder of the file if need be. A reader finds the old file or the new one.
func WriteToken(path, token string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("the token file: %w; use --token-file", err)
	}
	if err := durable.WriteSecret(path, []byte(token+"\n")); err != nil {
		return fmt.Errorf("the token file: %w; use --token-file", err)
	}
	return nil
}

// maxToken bounds what a token file may hold, in bytes.
const maxToken = 4 << 10

// ReadToken reads a token from a file, or from stdin if path is "-". A signal that ends ctx
// meanwhile ends the process. listener is the command that writes such a token, for errors; check
// returns what is wrong with a text that is to be one.
func ReadToken(ctx context.Context, stdin io.Reader, path, listener string,
	check func(token string) error) (string, error) {
	defer ExitOnSignal(ctx)()
	from := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", Usagef("the token: %v; copy the file that %s wrote", err, listener)
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, maxToken+1))
	token := strings.TrimSpace(string(text))
	switch {
	case err != nil:
		return "", Usagef("the token: %v; name the file that %s wrote, or a copy", err, listener)
	case token == "" || len(text) > maxToken:
		return "", Usagef("the token: what was read holds none; copy the file that %s wrote",
			listener)
	}
	if err := check(token); err != nil {
		return "", Usagef("the token: %v", err)
	}
	return token, nil
}

// WarnIfReadable writes a warning to notes if other users of this host can read the token at path.
func WarnIfReadable(notes io.Writer, path string) {
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() &&
		info.Mode().Perm()&0o077 != 0 {
		fmt.Fprintf(notes, "shoal: WARNING: other users of this host can read the token in %s, "+
			"and join with it: chmod 600 %[1]s\n", path)
	}
}
