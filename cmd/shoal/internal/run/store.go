package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/launcher"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/nats"
	"github.com/shoal-ml/shoal/store/record"
)

// storeFlags say where the record of jobs is kept. One goroutine uses them, that of the command,
// and no method changes them. Only openStore and findJob do I/O, and wait for the servers.
type storeFlags struct {
	at          string // a URL, or a folder; "" = nowhere
	credentials string // file for the servers; "" = none
	takeOver    bool   // whether to take a name that is led elsewhere
}

// maxCredentials bounds what a file with credentials may hold, in bytes.
const maxCredentials = 1 << 20

// addCredentialsTo defines the flag --store-creds.
func (f *storeFlags) addCredentialsTo(flags *pflag.FlagSet) {
	flags.StringVar(&f.credentials, "store-creds", "",
		"`FILE` with the credentials for the NATS servers of the store")
}

// checkCredentials fails where the flags are empty, or name no file that can be read. An agent that
// joins by an address needs the file only when its host leads the job.
func (f *storeFlags) checkCredentials(flags *pflag.FlagSet) error {
	err := cli.RefuseEmpty(flags, "store", "store-creds")
	if err != nil || f.credentials == "" {
		return err
	}
	if _, err = durable.Read(f.credentials, maxCredentials); err != nil {
		return cli.Usagef("--store-creds: %v", err)
	}
	return nil
}

// check fails where the flags of a job that begins are wrong, as far as that shows before the store
// is opened.
func (f *storeFlags) check(flags *pflag.FlagSet) error {
	remote, err := f.isRemote()
	if err == nil {
		err = f.checkCredentials(flags)
	}
	if err != nil || remote {
		return err
	}
	return cli.CheckNewFolder("--store", f.at)
}

// isRemote reports whether the store is on servers. It fails where the text of --store could mean
// either a server or a folder, and where the other flags do not fit to it.
func (f *storeFlags) isRemote() (bool, error) {
	if f.at == "" {
		if f.credentials != "" || f.takeOver {
			return false, cli.Usagef(
				"--store-creds and --take-over are about the record of the job: they need --store")
		}
		return false, nil
	}
	remote := strings.Contains(f.at, "://")
	_, port, err := net.SplitHostPort(f.at)
	switch {
	case remote && (!strings.HasPrefix(f.at, "nats://") && !strings.HasPrefix(f.at, "tls://") ||
		strings.HasSuffix(f.at, "://")):
		return false, cli.Usagef("--store %s: the store is NATS: write nats://HOST:4222 or "+
			"tls://HOST:4222, or a folder", f.at)
	case !remote && err == nil && port != "" && !strings.Contains(f.at, "/"):
		return false, cli.Usagef("--store %s: write nats://%[1]s for servers, ./%[1]s for a folder",
			f.at)
	case !remote && f.credentials != "":
		return false, cli.Usagef(
			"--store-creds is for NATS servers: it needs --store nats://HOST:4222")
	}
	return remote, nil
}

// servers returns the servers of the store with the credentials for them.
func (f *storeFlags) servers() nats.Servers {
	return nats.Servers{URL: f.at, Credentials: f.credentials}
}

// openStore opens the store for a job that begins; nil if there is to be none. The caller closes
// it.
func (f *storeFlags) openStore(ctx context.Context) (*launcher.RecordConfig, error) {
	remote, err := f.isRemote()
	if err != nil || f.at == "" {
		return nil, err
	}
	c := &launcher.RecordConfig{TakeOver: f.takeOver}
	if remote {
		c.URL = f.at
		c.Store, err = nats.Connect(ctx, f.servers())
	} else {
		c.Store, err = nats.Open(f.at)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; or run without --store: no job needs one to survive the "+
			"loss of workers and hosts", err)
	}
	return c, nil
}

// unconnectedStore returns the store of a job that this host joins, in case the host leads the job
// one day. It connects at its first use. The launcher calls it, and closes the store.
func (f *storeFlags) unconnectedStore(url string) store.Store {
	return nats.ConnectLater(nats.Servers{URL: url, Credentials: f.credentials})
}

// findJob asks the store for the address at which a job listens.
func (f *storeFlags) findJob(ctx context.Context, job string) (address string, err error) {
	remote, err := f.isRemote()
	if err != nil {
		return "", err
	}
	if !remote {
		return "", cli.Usagef("--store %s: the store in a folder can be asked by nobody but the "+
			"agent that has it open; give --join HOST:PORT instead", f.at)
	}
	s, err := nats.Connect(ctx, f.servers())
	if err != nil {
		return "", fmt.Errorf("%w; or give --join HOST:PORT", err)
	}
	defer s.Close()
	o, err := store.Find(ctx, s, job)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "", fmt.Errorf("the store %s knows no job called %q: start it with shoal run "+
			"--name %[2]s --listen ADDRESS --store URL", s, job)
	case err != nil:
		return "", err
	case !o.Ended.IsZero():
		return "", fmt.Errorf("the job %q has ended at %s, by what the store %s knows", job,
			o.Ended.Format("2006-01-02 15:04:05 MST"), s)
	case o.Address == "":
		return "", fmt.Errorf("the job %q, led by host %s, lets nobody join: it was started "+
			"without --listen, or has only just begun", job, o.Host)
	}
	return o.Address, nil
}

// withTakeOverHint appends the flag --take-over to an error about a name that is taken: the store
// does not know its flag. It is pure.
func withTakeOverHint(err error) error {
	var taken *store.TakenError
	var elsewhere *record.ElsewhereError
	if errors.As(err, &taken) || errors.As(err, &elsewhere) {
		return fmt.Errorf("%w (--take-over)", err)
	}
	return err
}
