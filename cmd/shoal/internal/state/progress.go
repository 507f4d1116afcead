package state

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/internal/cli"
)

// How far a command is, for people.

// withProgress returns the context of a command under which package checkpoint says on stderr how
// far it is, on its goroutines, one at a time. The command calls clear before it prints anything
// else.
func withProgress(cmd *cobra.Command) (ctx context.Context, clear func()) {
	p := cli.NewProgress(cmd.ErrOrStderr())
	return checkpoint.WithProgress(cmd.Context(), p.Bytes), p.Clear
}
