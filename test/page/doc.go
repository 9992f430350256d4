// Package page tests the page at /ui/ as people use it: a real cluster, a real browser without a window.
package page
