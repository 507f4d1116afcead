package pools

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/tcp"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/pool/keeper"
)

// shoal pool join, and what the keepers of a pool of several hosts keep in the folder of the pool.
// The goroutine of the command runs what is here; the keeper may call the functions that it is
// given on others. machineID, keeperLinks and inviter read and write files in that folder.

// Files in the folder of a pool.
const (
	machineFile   = "machine"   // a random text that tells this machine from others
	authorityFile = "authority" // certificate and key by which keepers trust each other
	joinFile      = "join"      // where this host has joined last
	tokenFile     = "token"     // with which other hosts join
)

// machineID returns the text that tells this machine from others of the same name, which it makes
// where there is none.
func machineID(dir string) (string, error) {
	path := filepath.Join(dir, machineFile)
	text, err := os.ReadFile(path)
	if err == nil && len(text) >= 8 {
		return strings.TrimSpace(string(text)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	id := make([]byte, 12)
	_, _ = rand.Read(id) // does not fail
	name := hex.EncodeToString(id)
	return name, durable.Write(path, []byte(name))
}

// keeperLinks returns how the keeper of a pool is linked with others, as far as the folder of the
// pool knows.
func keeperLinks(dir, host string) (keeper.Links, error) {
	if err := tcp.CheckName(fabric.Host(host)); err != nil {
		return keeper.Links{}, cli.AsUsage(fmt.Errorf("--name: %w", err))
	}
	id, err := machineID(dir)
	if err != nil {
		return keeper.Links{}, folderError(err)
	}
	path := filepath.Join(dir, authorityFile)
	authority, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		authority, err = nil, nil
	} else if err == nil {
		_, err = tcp.NewToken(authority, cli.TokenLife)
	}
	if err != nil {
		return keeper.Links{}, fmt.Errorf("%s cannot be used: %w: remove it, and have hosts join "+
			"again with a token", path, err)
	}
	return keeper.Links{Machine: id, Authority: authority, KeepAuthority: func(b []byte) error {
		return durable.WriteSecret(path, b)
	}}, nil
}

// inviter returns what writes tokens to a file, and tells people at first how hosts join.
func inviter(notes io.Writer, name, file string) func(address, token string) error {
	told := false
	return func(address, token string) error {
		if err := cli.WriteToken(file, token); err != nil || told {
			return err
		}
		told = true
		fmt.Fprintf(notes, "shoal: other hosts join with this file, which is renewed while the "+
			"pool is kept:\n  shoal pool join%s --join %s --token-file %s\n", nameWord(name),
			address, file)
		return nil
	}
}

// nameWord returns the name of a pool as an argument behind a space; "" for the usual one.
func nameWord(name string) string {
	if name == defaultName {
		return ""
	}
	return " " + name
}

// listener is the command that writes the tokens of a pool.
const listener = "shoal pool start --listen"

// joinFlags are the flags of shoal pool join.
type joinFlags struct {
	slots      int
	host       string // name of this host; "" = its own
	join       string // HOST:PORT of a keeper; "" = as the last time
	tokenFile  string // "-" = standard input; "" = this host has joined before
	listen     string
	bandwidth  cli.Rate // of the card of this host; 0 = not known
	background bool
}

// newJoinCommand returns the command shoal pool join.
func newJoinCommand() *cobra.Command {
	var f joinFlags
	cmd := &cobra.Command{
		Use:   "join [NAME] --join HOST:PORT --token-file FILE",
		Short: "Lend this host to a pool that another host keeps",
		Long: cli.Help(`Lend this host to a pool that another host keeps with shoal pool start --listen, until Ctrl-C or
shoal pool stop here. The pool starts jobs here, or workers of jobs that other hosts lead. They
train on when this keeper ends or is killed, and the next shoal pool join finds them; it needs no
flags then, since this host remembers where it has joined, and how it is trusted.

shoal submit, queue and stop work on all hosts of the pool; logs, ps, top and explain where the job
is led, which is lead in shoal queue --json. The folder in which a job was submitted must be there
on all hosts. When the host that keeps the pool is away, jobs go on, and this host joins again when
it is back.`, cli.ExitCodes, "pool"),
		Example: `  shoal pool join --join node1:7070 --token-file token
  shoal pool join --join node1:7070 --token-file - --slots 2 --background < token
  shoal pool join                          after a restart of this host`,
		Args: cli.Arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := nameAndSlots(cmd, args, &f.slots)
			if err != nil {
				return err
			}
			err = cli.RefuseEmpty(cmd.Flags(), "join", "token-file", "name", "listen")
			if err != nil {
				return err
			}
			err = cmp.Or(cli.CheckJoin(f.join), cli.CheckAddress("listen", f.listen))
			if err != nil {
				return err
			}
			if err := keeper.CheckFree(name); err != nil {
				return err
			}
			if f.background {
				return f.inBackground(cmd, name)
			}
			return f.keep(cmd, name)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.join, "join", "", "where a keeper of the pool listens, as shoal pool start "+
		"said")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the token that shoal pool start "+
		"wrote; - reads it from standard input")
	flags.IntVar(&f.slots, "slots", 0, slotsUsage)
	flags.StringVar(&f.host, "name", "", "name of this host (default: its own)")
	addBandwidth(cmd, &f.bandwidth)
	flags.StringVar(&f.listen, "listen", ":0", "address on which the other keepers reach this one")
	flags.BoolVar(&f.background, "background", false, "return when the pool has taken this host, "+
		"and keep it on")
	return cmd
}

// keep keeps this host in the pool until the context of cmd ends or somebody ends the keeper.
func (f *joinFlags) keep(cmd *cobra.Command, name string) error {
	ctx, notes := cmd.Context(), cmd.ErrOrStderr()
	dir, err := makePoolFolder(name)
	if err != nil {
		return err
	}
	c, err := keeperConfig(dir, name, f.host, f.slots, notes)
	if err != nil {
		return err
	}
	defer c.Waiters.Close() // last of all
	c.Listen, c.Join, c.Link = f.listen, f.join, min(float64(f.bandwidth), keeper.MaxLink)
	if c.Join == "" {
		text, err := os.ReadFile(filepath.Join(dir, joinFile))
		if err != nil {
			return cli.Usagef("shoal pool join needs --join HOST:PORT and --token-file FILE; " +
				"shoal pool start --listen prints both")
		}
		c.Join = strings.TrimSpace(string(text))
	}
	switch {
	case f.tokenFile != "":
		if c.Token, err = f.token(cmd); err != nil {
			return err
		}
		cli.WarnIfReadable(notes, f.tokenFile)
		c.Authority = nil // that of the token
	case c.Authority == nil:
		return cli.Usagef("this host has not joined the pool %s before: give --token-file FILE, "+
			"which shoal pool start --listen wrote there", name)
	}
	err = keeper.Join(ctx, c, func() {
		for file, text := range map[string]string{hostFile: c.Host, joinFile: c.Join} {
			if err := remember(dir, file, text); err != nil {
				fmt.Fprintf(notes, "shoal: %v; give the next shoal pool join the same flags\n", err)
			}
		}
		fmt.Fprintf(notes, "shoal: pool %s has taken host %s, with %s\n", name, c.Host,
			plural.Of(c.Slots, "slot"))
	})
	if ctx.Err() == nil && err != nil {
		return asUsageError(err)
	}
	fmt.Fprintf(notes, "shoal: this host leaves the pool %s; its jobs go on\n", name)
	return context.Cause(ctx)
}

// token returns the token of --token-file, which it reads.
func (f *joinFlags) token(cmd *cobra.Command) (string, error) {
	return cli.ReadToken(cmd.Context(), cmd.InOrStdin(), f.tokenFile, listener, tcp.CheckToken)
}

// inBackground joins in a session of its own, and returns when the pool has taken this host.
func (f *joinFlags) inBackground(cmd *cobra.Command, name string) error {
	args := []string{"pool", "join", name, "--slots", strconv.Itoa(f.slots), "--listen", f.listen}
	if f.join != "" {
		args = append(args, "--join", f.join)
	}
	if f.host != "" {
		args = append(args, "--name", f.host)
	}
	args = append(args, bandwidthArgs(f.bandwidth)...)
	token := ""
	if f.tokenFile != "" {
		text, err := f.token(cmd)
		if err != nil {
			return err
		}
		token, args = text, append(args, "--token-file", "-")
	}
	s, path, err := inSession(cmd, name, token, args)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "pool %s: %s, %s of them here; its log is %s\n", name,
		hostsText(s), plural.Of(f.slots, "slot"), path)
	return nil
}

// hostsText says how many hosts and slots a pool has.
func hostsText(s keeper.State) string {
	slots := 0
	for _, h := range s.Hosts {
		slots += h.Slots
	}
	return plural.Of(len(s.Hosts), "host") + ", " + plural.Of(slots, "slot")
}
