package jobs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/dash"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/watch"
)

// shoal report and shoal dash. One goroutine runs what is here, that of the command.

// NewReportCommand returns the command shoal report.
func NewReportCommand() *cobra.Command {
	var output string
	var force bool
	cmd := &cobra.Command{
		Use:   "report JOB -o FILE.html",
		Short: "Write what is known about a run into one file for a browser",
		Long: cli.Help(`Write the page of a run into one file, which needs no server and no network: charts of loss, rate
and step time, events, changes with what was predicted and measured, hosts and workers. The file
contains the command of the job and the names of hosts, and not the output of workers.

JOB is the name of a running job, else of its newest run, or the directory of a run. All that can
be read of the directory is shown, with a note of what is missing.`, cli.ExitCodes, "watch"),
		Example: `  shoal report train -o report.html
  shoal report ~/.local/state/shoal/runs/train-3 -o report.html
  shoal report train -o - | gzip > report.html.gz`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output == "" {
				return cli.Usagef("say where the report goes: -o report.html, or -o - to print it")
			}
			if output != "-" {
				if err := cli.CheckNewOutput("-o", output, force); err != nil {
					return err
				}
			}
			f, err := openWatched(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := f.Poll(cmd.Context(), time.Now()); err != nil {
				return err
			}
			view := f.Run.View(watch.Seconds(time.Now()))
			if output == "-" {
				return dash.WriteReport(cmd.OutOrStdout(), view)
			}
			if err := writeReport(output, view); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: open it in a browser\n", output)
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "write to this `FILE`; - is the output")
	cmd.Flags().BoolVar(&force, "force", false, "replace a file that is there")
	_ = cmd.MarkFlagFilename("output", "html") // it fails for flags that there are not
	return cmd
}

// writeReport writes a report as a file, whole or not at all, in the place of what is there,
// but not of what the report is made of.
func writeReport(path string, view watch.View) error {
	_, err := os.Lstat(path)
	folder, _ := os.Stat(filepath.Dir(path))
	run, _ := os.Stat(view.Dir)
	if err == nil && filepath.Ext(path) != ".html" && os.SameFile(folder, run) {
		return cli.Usagef("%s is a file of the run: choose another name for the report", path)
	}
	var b bytes.Buffer
	if err := dash.WriteReport(&b, view); err != nil {
		return err
	}
	return durable.WriteSecret(path, b.Bytes())
}

// NewDashCommand returns the command shoal dash.
func NewDashCommand() *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use:   "dash JOB",
		Short: "Serve the page of a job, live or of a run that is over",
		Long: cli.Help(`Serve a page that shows how a job trains, updated every second: charts of loss, rate and step time,
events, changes with what was predicted and measured, hosts and links, workers and their output.
The command prints the address of the page, with a token in it that a browser needs. Nothing on the
page changes the job. Ctrl-C ends the command, and the job goes on.

Only this machine can open the page, unless --listen names another address; then it travels in the
clear. From elsewhere, ssh is better: ssh -L 8642:127.0.0.1:8642 HOST

JOB is the name of a running job, else of its newest run, or the directory of a run. All that can
be read of the directory is shown, with a note of what is missing.`, cli.ExitCodes, "watch"),
		Example: `  shoal dash train
  shoal dash train --listen 127.0.0.1:8642
  shoal dash ~/.local/state/shoal/runs/train-3`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			if address == "" {
				return cli.Usagef("--listen is empty: say where to serve, such as 127.0.0.1:8642")
			}
			if err := cli.CheckAddress("listen", address); err != nil {
				return err
			}
			f, err := openWatched(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			page, err := dash.OpenPage(cmd.Context(), f, "--listen", address)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), page.URL()); err != nil {
				return err // nobody could open the page
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "shoal: open this address in a browser; Ctrl-C ends "+
				"the page alone")
			if err := page.Wait(); err != nil {
				return err
			}
			return context.Cause(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&address, "listen", "127.0.0.1:0",
		"serve at this `ADDRESS`; port 0 is any that is free")
	return cmd
}
